package controller

import "github.com/csi-addons/node-healer/pkg/api"

// The reasons in conditions and events; docs/controller.md says what to do about each.
const (
	// The job runs.
	ReasonStarted      = "Started"
	ReasonPodNotActive = "PodNotRunning"
	ReasonAPIError     = "APIError"

	// The volume.
	ReasonHealthy       = "Healthy"
	ReasonAbnormal      = "Abnormal"
	ReasonNotInUse      = "NotInUse"
	ReasonClaimNotFound = "ClaimNotFound"
	ReasonClaimNotBound = "ClaimNotBound"
	ReasonNotCSI        = "NotCSI"
	ReasonPodMoved      = "PodMoved"
	ReasonTooManyNodes  = "TooManyNodes"
	ReasonDeadline      = "RetryDeadlineExceeded"

	// Evictions.
	ReasonEvictionWaits   = "EvictionWaits"
	ReasonEvictionRefused = "EvictionRefused"
	ReasonWouldEvict      = "WouldEvict"
	ReasonEvicting        = "Evicting"
	ReasonEvicted         = "Evicted"
	ReasonUnstaging       = "Unstaging"
	ReasonUnstaged        = "Unstaged"
	ReasonEvictionGaveUp  = "EvictionGaveUp"
	ReasonTaintRemoved    = "TaintRemoved"

	// The way to the node.
	ReasonNodeNotReady         = "NodeNotReady"
	ReasonGatewayNotRegistered = "GatewayNotRegistered"
	ReasonGatewayUnreachable   = "GatewayUnreachable"
	ReasonTokenNotMade         = "TokenNotMade"

	// What the node, or its gateway, answered.
	ReasonCredentialsRefused    = "CredentialsRefused"
	ReasonCallerNotChecked      = "CallerNotChecked"
	ReasonNodeHealerUnreachable = "NodeHealerUnreachable"
	ReasonVolumeNotFound        = "VolumeNotFound"
	ReasonVolumeBusy            = "VolumeBusy"
	ReasonShuttingDown          = "ShuttingDown"
	ReasonDisabled              = "Disabled"
	ReasonInvalidRequest        = "InvalidRequest"
	ReasonTimedOut              = "TimedOut"
	ReasonOperationFailed       = "OperationFailed"
)

// answeredReasons are those of the server's and the gateway's errors (docs/errors.md).
var answeredReasons = map[string]string{
	"SHUTTING_DOWN":           ReasonShuttingDown,
	"INVALID_REQUEST":         ReasonInvalidRequest,
	"VOLUME_NOT_FOUND":        ReasonVolumeNotFound,
	"VOLUME_BUSY":             ReasonVolumeBusy,
	"CREDENTIALS_REFUSED":     ReasonCredentialsRefused,
	"CALLER_NOT_CHECKED":      ReasonCallerNotChecked,
	"NODE_HEALER_UNREACHABLE": ReasonNodeHealerUnreachable,
	"DISABLED":                ReasonDisabled,
	"OPERATION_FAILED":        ReasonOperationFailed,
}

// The classes of what keeps the controller from an answer.
var (
	// passing may end by itself.
	passing = api.Class{Tier: api.Transient, Type: api.TypeExecution}
	// late is a call that took too long.
	late = api.Class{Tier: api.Transient, Type: api.TypeTimeout}
	// changing may end when something in the cluster is changed.
	changing = api.Class{Tier: api.Retriable, Type: api.TypeExecution}
	// distrusted is tried once more, because rights are replaced.
	distrusted = api.Class{Tier: api.Terminal, Type: api.TypePermission}
	// final fails until a person acts.
	final = api.Class{Tier: api.Terminal, Type: api.TypeValidation}
)
