// Package api has what the programs of this project say to each other, and the names that
// they share with others. It imports nothing of this project.
package api

// ErrorDomain is the domain of the reasons in google.rpc.ErrorInfo, of the server and of
// the gateway: callers need not care which of the two answered.
const ErrorDomain = "node-healer.csi-addons.io"

// Tier says whether calling again may help.
type Tier string

// The tiers of an error.
const (
	// Transient: the same call may succeed a moment later by itself.
	Transient Tier = "transient"
	// Retriable: it may succeed once something else on the node changed.
	Retriable Tier = "retriable"
	// Terminal: it fails until a person acts.
	Terminal Tier = "terminal"
)

// Type says what kind of error it is.
type Type string

// The types of an error.
const (
	TypePermission Type = "permission"
	TypeExecution  Type = "execution"
	TypeValidation Type = "validation"
	TypeTimeout    Type = "timeout"
	TypeUnknown    Type = "unknown"
)

// Class is an error's tier and type.
type Class struct {
	Tier Tier
	Type Type
}

// String returns "tier/type".
func (c Class) String() string { return string(c.Tier) + "/" + string(c.Type) }
