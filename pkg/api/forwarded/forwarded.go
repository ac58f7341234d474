// Package forwarded names the metadata by which node-healer-gateway tells node-healer
// of the caller of each call that it passes on. A server believes it from the gateway's
// uid only. It is no part of the CSI-Addons contract.
package forwarded

const (
	// Caller is the metadata key of the caller's name, as the Kubernetes API
	// knows it. Binary: a name may hold any character.
	Caller = "node-healer-caller-bin"
	// Verb is the metadata key of what the caller may do: VerbHeal or VerbCheck.
	Verb = "node-healer-verb"
)

// The verbs, on nodehealers.csi-addons.io.
const (
	// VerbHeal is for NodeHealer.
	VerbHeal = "heal"
	// VerbCheck is for everything else; with it NodeHealer changes nothing.
	VerbCheck = "check"
)
