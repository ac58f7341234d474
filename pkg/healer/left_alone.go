package healer

// LeftReason names a kind of LeftAlone. Reasons are part of the interface, as those of
// conditions are.
type LeftReason string

// The reasons that are told to the cluster.
const (
	// PermissionMissing: a right is missing, and not only in the first try.
	PermissionMissing LeftReason = "PermissionMissing"
	// TerminalError: a step failed for a cause that only a person can end.
	TerminalError LeftReason = "TerminalError"
)

// LeftAlone says why the node's own loop tries no more heals of a sick volume until
// something changes. The zero value: it does, or nothing is to be healed.
type LeftAlone struct {
	// Reason is empty where the report's conditions and steps say it all.
	Reason LeftReason
	// Because is half a sentence without a final stop; empty only in the zero value.
	Because string
	// Detail is what the last step failed at; empty if none did.
	Detail string
}

// String returns the first two parts in one line.
func (l LeftAlone) String() string {
	if l.Reason == "" {
		return l.Because
	}
	return string(l.Reason) + ": " + l.Because
}
