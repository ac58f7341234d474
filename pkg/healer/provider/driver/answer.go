package driver

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// Row is what one gRPC code means for another try.
type Row struct {
	Code  codes.Code
	Name  string
	Class healer.Class
}

// Rows returns the one table of a driver's codes; docs/errors.md prints it. A code that
// it lacks is as UNKNOWN.
func Rows() []Row {
	class := func(tier healer.Tier, kind healer.Type) healer.Class { return healer.Class{Tier: tier, Type: kind} }
	return []Row{
		{codes.Aborted, "ABORTED", class(healer.Transient, healer.TypeExecution)},
		{codes.Unavailable, "UNAVAILABLE", class(healer.Transient, healer.TypeExecution)},
		{codes.Canceled, "CANCELLED", class(healer.Transient, healer.TypeExecution)},
		{codes.Internal, "INTERNAL", class(healer.Retriable, healer.TypeExecution)},
		{codes.DeadlineExceeded, "DEADLINE_EXCEEDED", class(healer.Retriable, healer.TypeTimeout)},
		{codes.InvalidArgument, "INVALID_ARGUMENT", class(healer.Terminal, healer.TypeValidation)},
		{codes.NotFound, "NOT_FOUND", class(healer.Terminal, healer.TypeValidation)},
		{codes.AlreadyExists, "ALREADY_EXISTS", class(healer.Terminal, healer.TypeValidation)},
		{codes.FailedPrecondition, "FAILED_PRECONDITION", class(healer.Terminal, healer.TypeValidation)},
		{codes.OutOfRange, "OUT_OF_RANGE", class(healer.Terminal, healer.TypeValidation)},
		{codes.PermissionDenied, "PERMISSION_DENIED", class(healer.Terminal, healer.TypePermission)},
		{codes.Unauthenticated, "UNAUTHENTICATED", class(healer.Terminal, healer.TypePermission)},
		{codes.ResourceExhausted, "RESOURCE_EXHAUSTED", class(healer.Terminal, healer.TypeExecution)},
		{codes.Unimplemented, "UNIMPLEMENTED", class(healer.Terminal, healer.TypeExecution)},
		{codes.DataLoss, "DATA_LOSS", class(healer.Terminal, healer.TypeExecution)},
		// The specification of NodeHealer: the caller must study the logs before it
		// tries again.
		{codes.Unknown, "UNKNOWN", class(healer.Terminal, healer.TypeUnknown)},
	}
}

// Unsettled reports whether a driver that answers so may still be at work on what it was
// asked for.
func (r Row) Unsettled() bool {
	return r.Class.Tier == healer.Transient || r.Class.Type == healer.TypeTimeout
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
}

// Error implements error.
func (e *callError) Error() string { return fmt.Sprintf("%s: %s: %s", e.method, e.row.Name, e.text) }

// Class implements healer.Classified.
func (e *callError) Class() healer.Class { return e.row.Class }

func failed(method string, err error) *callError {
	s := status.Convert(err)
	return &callError{method: method, row: rowOf(s.Code()), text: s.Message()}
}
