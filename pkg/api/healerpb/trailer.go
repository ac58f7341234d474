package healerpb

// TrailerMessage is the trailer of an answer to NodeHealer that has more to say than fits in
// NodeHealerResponse.message: paths and findings in full, in one line as well.
const TrailerMessage = "node-healer-message-bin"

// TrailerConditions is the trailer of an answer to csi.v1.Node/NodeGetVolumeHealth of a volume
// that is abnormal: a JSON list of Condition. CSI has no field for what ends a condition.
const TrailerConditions = "node-healer-conditions-bin"

// Condition says what ends a condition that no step of the node ends.
type Condition struct {
	// Reason is that of an entry of the answer.
	Reason string `json:"reason"`
	// NewStage is true where the volume works again once it is staged anew.
	NewStage bool `json:"newStage,omitempty"`
	// NewPod is the UID of a pod of which a new one has the volume as it should.
	NewPod string `json:"newPod,omitempty"`
}
