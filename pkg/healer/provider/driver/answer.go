package driver

import (
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/pkg/api"
)

// Row is what one gRPC code means for another try.
type Row struct {
	Code  codes.Code
	Name  string
	Class api.Class
}

// Rows returns the one table of a driver's codes; docs/errors.md prints it. A code that
// it lacks is as UNKNOWN.
func Rows() []Row {
	class := func(tier api.Tier, kind api.Type) api.Class { return api.Class{Tier: tier, Type: kind} }
	return []Row{
		{codes.Aborted, "ABORTED", class(api.Transient, api.TypeExecution)},
		{codes.Unavailable, "UNAVAILABLE", class(api.Transient, api.TypeExecution)},
		{codes.Canceled, "CANCELLED", class(api.Transient, api.TypeExecution)},
		{codes.Internal, "INTERNAL", class(api.Retriable, api.TypeExecution)},
		{codes.DeadlineExceeded, "DEADLINE_EXCEEDED", class(api.Retriable, api.TypeTimeout)},
		{codes.InvalidArgument, "INVALID_ARGUMENT", class(api.Terminal, api.TypeValidation)},
		{codes.NotFound, "NOT_FOUND", class(api.Terminal, api.TypeValidation)},
		{codes.AlreadyExists, "ALREADY_EXISTS", class(api.Terminal, api.TypeValidation)},
		{codes.FailedPrecondition, "FAILED_PRECONDITION", class(api.Terminal, api.TypeValidation)},
		{codes.OutOfRange, "OUT_OF_RANGE", class(api.Terminal, api.TypeValidation)},
		{codes.PermissionDenied, "PERMISSION_DENIED", class(api.Terminal, api.TypePermission)},
		{codes.Unauthenticated, "UNAUTHENTICATED", class(api.Terminal, api.TypePermission)},
		{codes.ResourceExhausted, "RESOURCE_EXHAUSTED", class(api.Terminal, api.TypeExecution)},
		{codes.Unimplemented, "UNIMPLEMENTED", class(api.Terminal, api.TypeExecution)},
		{codes.DataLoss, "DATA_LOSS", class(api.Terminal, api.TypeExecution)},
		// Drivers written in Go answer it for every failure that they give no code, so it
		// says nothing of another try. (Only NodeHealer's specification has the caller
		// study the logs first.)
		{codes.Unknown, "UNKNOWN", class(api.Retriable, api.TypeUnknown)},
	}
}

// Pending reports whether a driver that answers so may still be at work on what it was
// asked for.
func (r Row) Pending() bool {
	return r.Class.Tier == api.Transient || r.Class.Type == api.TypeTimeout
}

func rowOf(code codes.Code) Row {
	rows := Rows()
	for _, r := range rows {
		if r.Code == code {
			return r
		}
	}
	return rows[len(rows)-1]
}

// callError is a call that a driver did not answer with a result.
type callError struct {
	method string
	row    Row
	text   string
	// inProgress is true where the text says that the driver is at work on the volume: not all
	// drivers have the code for that, ABORTED.
	inProgress bool
}

// pending reports whether the driver may still be at work on what it was asked for.
func (e *callError) pending() bool { return e.row.Pending() || e.inProgress }

// Error implements error.
func (e *callError) Error() string { return fmt.Sprintf("%s: %s: %s", e.method, e.row.Name, e.text) }

// Class implements healer.Classified.
func (e *callError) Class() api.Class { return e.row.Class }

// classed is an error of this provider with its class.
type classed struct {
	error
	class api.Class
}

// Unwrap returns what the error wraps.
func (e classed) Unwrap() error { return e.error }

// Class implements healer.Classified.
func (e classed) Class() api.Class { return e.class }
