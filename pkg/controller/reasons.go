package controller

import "github.com/csi-addons/node-healer/pkg/healer"

// The reasons in conditions and events; docs/controller.md says what to do about each.
const (
	// The job runs.
	ReasonStarted      = "Started"
	ReasonPodNotActive = "PodNotRunning"

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

	// The way to the node.
	ReasonNodeNotReady         = "NodeNotReady"
	ReasonGatewayNotRegistered = "GatewayNotRegistered"
	ReasonGatewayUnreachable   = "GatewayUnreachable"
	ReasonCertificateRefused   = "CertificateRefused"
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
	passing = healer.Class{Tier: healer.Transient, Type: healer.TypeExecution}
	// late is a call that took too long.
	late = healer.Class{Tier: healer.Transient, Type: healer.TypeTimeout}
	// changing may end when something in the cluster is changed.
	changing = healer.Class{Tier: healer.Retriable, Type: healer.TypeExecution}
	// distrusted is tried once more, because certificates and rights are replaced.
	distrusted = healer.Class{Tier: healer.Terminal, Type: healer.TypePermission}
	// final fails until a person acts.
	final = healer.Class{Tier: healer.Terminal, Type: healer.TypeValidation}
)
