package gateway

import (
	"errors"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/internal/retry"
	"github.com/csi-addons/node-healer/pkg/api"
)

// StatusRow is what the gateway answers in place of the server: a code of the contract,
// the reason in google.rpc.ErrorInfo, and the class.
type StatusRow struct {
	Code   codes.Code
	Reason string
	Class  api.Class
	When   string
}

var (
	credentialsRefused = StatusRow{
		codes.Unauthenticated, "CREDENTIALS_REFUSED",
		api.Class{Tier: api.Terminal, Type: api.TypePermission},
		"the token is missing or not accepted, or its user lacks the right; or the gateway lacks the right to ask the API",
	}
	callerNotChecked = StatusRow{
		codes.Unauthenticated, "CALLER_NOT_CHECKED",
		api.Class{Tier: api.Transient, Type: api.TypeExecution},
		"the API does not answer who the caller is and what it may do, or was asked about too many tokens",
	}
	nodeHealerUnreachable = StatusRow{
		codes.Aborted, "NODE_HEALER_UNREACHABLE",
		api.Class{Tier: api.Transient, Type: api.TypeExecution},
		"the server of this node cannot be reached, or the connection to it ended during the call; or too many callers use reflection",
	}
	methodNotOffered = StatusRow{
		codes.Unimplemented, "NOT_OFFERED",
		api.Class{Tier: api.Terminal, Type: api.TypeValidation},
		"a method that the gateway does not pass on",
	}
	operationFailed = StatusRow{
		codes.Unknown, "OPERATION_FAILED",
		api.Class{Tier: api.Retriable, Type: api.TypeUnknown},
		"anything else",
	}
)

// StatusRows returns all of them; docs/errors.md prints it.
func StatusRows() []StatusRow {
	return []StatusRow{credentialsRefused, callerNotChecked, nodeHealerUnreachable, methodNotOffered, operationFailed}
}

func (r StatusRow) status(text string) error {
	s := status.New(r.Code, printable.Line(text, maxTextBytes))
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: r.Reason, Domain: api.ErrorDomain, Metadata: map[string]string{"tier": string(r.Class.Tier), "error_type": string(r.Class.Type)},
	}}
	if after, again := retry.After(r.Class, 1); again && r.Class.Tier != api.Terminal {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	}
	detailed, err := s.WithDetails(details...)
	if err != nil { // they cannot be encoded; the code says the most
		return s.Err()
	}
	return detailed.Err()
}

// refused returns the status of a caller that authorize did not admit.
func refused(err error) error {
	if isUnanswered(err) {
		return callerNotChecked.status(err.Error())
	}
	return credentialsRefused.status(err.Error())
}

// ownCodes are of statuses that the server, or gRPC for it, may send without details:
// grpc.health.v1 demands NOT_FOUND, and CANCELED and DEADLINE_EXCEEDED are the end of the
// caller's own context.
var ownCodes = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.Aborted, codes.Unauthenticated,
	codes.Canceled, codes.DeadlineExceeded,
}

// passed returns the status with which a call to the server ended. One with details is
// the server's. Others are of gRPC, mostly of the connection.
func passed(err error) error {
	s := status.Convert(err)
	switch {
	case len(s.Proto().GetDetails()) > 0, slices.Contains(ownCodes, s.Code()):
		return err
	case s.Code() == codes.Unavailable, s.Code() == codes.ResourceExhausted: // of the connection
		return nodeHealerUnreachable.status("the node healer of this node cannot be reached: " + s.Message())
	}
	return operationFailed.status(s.Message())
}

// isUnanswered reports whether an error of authorize says nothing of the caller, because
// the API was not asked or did not answer.
func isUnanswered(err error) bool { return errors.Is(err, errTooMany) || errors.Is(err, errNoAnswer) }
