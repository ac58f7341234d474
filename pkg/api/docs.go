package api

// ConditionsURL is where a person reads what a reason or step means, whose name follows
// (docs/conditions.md).
const ConditionsURL = "https://github.com/csi-addons/node-healer/blob/main/docs/conditions.md#"
