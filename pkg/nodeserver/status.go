package nodeserver

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/internal/retry"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// statusBytes bounds the text of an error: it is sent in a header, for which callers have
// limits of their own.
const statusBytes = 1024

// ErrorRow is what one kind of error becomes: a code of the contract, the reason in
// google.rpc.ErrorInfo, and the class by healer.Classify, which says whether another try
// may help.
type ErrorRow struct {
	// is is the error, or else kind is that of the errors.
	is     error
	kind   healer.Kind
	Code   codes.Code
	Reason string
	// Class is that of the cause where it is empty.
	Class api.Class
}

// ErrorRows returns the one table of errors; docs/errors.md prints it. The handlers
// return its codes and no other.
func ErrorRows() []ErrorRow { return slices.Clone(errorRows) }

// errorRows has the most particular error first. The last one, KindUnknown, fits all, also a kind
// of which only a vendor's provider knows. Only KindDisabled and errNotOffered are UNIMPLEMENTED,
// which tells callers not to try again.
var errorRows = []ErrorRow{
	{healer.ErrShuttingDown, 0, codes.Aborted, "SHUTTING_DOWN", healer.Classify(healer.ErrShuttingDown)},
	{errNotOffered, 0, codes.Unimplemented, "NOT_OFFERED", healer.KindDisabled.Class()},
	{nil, healer.KindInvalid, codes.InvalidArgument, "INVALID_REQUEST", healer.KindInvalid.Class()},
	{nil, healer.KindNotFound, codes.NotFound, "VOLUME_NOT_FOUND", healer.KindNotFound.Class()},
	{nil, healer.KindBusy, codes.Aborted, "VOLUME_BUSY", healer.KindBusy.Class()},
	{nil, healer.KindUnauthenticated, codes.Unauthenticated, "CREDENTIALS_REFUSED", healer.KindUnauthenticated.Class()},
	{nil, healer.KindDisabled, codes.Unimplemented, "DISABLED", healer.KindDisabled.Class()},
	{nil, healer.KindUnknown, codes.Unknown, "OPERATION_FAILED", api.Class{}},
}

// refused returns the status of a call that was refused before a handler got it.
func refused(format string, args ...any) error {
	return toStatus(&healer.Error{Kind: healer.KindUnauthenticated, Text: fmt.Sprintf(format, args...)})
}

// toStatus returns an error as a gRPC status with details, of which nothing is what a request
// or a volume holds. A status that the engine got from another call (a driver's answer, say)
// becomes text: its code is about that call.
func toStatus(err error) error {
	row := errorRows[slices.IndexFunc(errorRows, func(r ErrorRow) bool {
		return r.is != nil && errors.Is(err, r.is) || r.is == nil && (healer.KindOf(err) == r.kind || r.kind == healer.KindUnknown)
	})]
	if row.Class == (api.Class{}) {
		row.Class = healer.Classify(err)
	}
	e := new(healer.Error)
	_ = errors.As(err, &e)
	known := map[string]string{"tier": string(row.Class.Tier), "error_type": string(row.Class.Type), "step": e.Step, "errno": healer.ErrnoName(err)}
	maps.DeleteFunc(known, func(_, value string) bool { return value == "" })
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: row.Reason, Domain: api.ErrorDomain, Metadata: known}}
	if after, again := retry.After(row.Class, 1); again && row.Class.Tier != api.Terminal {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	}
	s := status.New(row.Code, printable.Line(err.Error(), statusBytes))
	detailed, failed := s.WithDetails(details...)
	if failed != nil { // they cannot be encoded; the code says the most
		return s.Err()
	}
	return detailed.Err()
}
