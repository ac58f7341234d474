package api

// ConditionsURL, followed by the name of a reason or step, is where a person reads what that
// means (docs/conditions.md).
const ConditionsURL = "https://github.com/csi-addons/node-healer/blob/main/docs/conditions.md#"
