package nodeserver

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/printable"
)

// statusBytes bounds the text of an error: it is sent in a header, for which callers
// have limits of their own.
const statusBytes = 1024

// toStatus returns an error as a gRPC status. A status that the engine got from another
// call (a driver's answer, say) becomes text: its code is about that call.
func toStatus(ctx context.Context, err error, secrets map[string]string) error {
	return status.Error(codeOf(ctx, err), printable.Line(healer.Secrets(secrets).Redact(err.Error()), statusBytes))
}

// codeOf maps by kind alone. UNIMPLEMENTED tells callers not to retry, so only
// KindDisabled becomes it.
func codeOf(ctx context.Context, err error) codes.Code {
	// Not a code of the contract: a caller gets it from a closed socket, too, and this
	// one is about to be closed.
	if errors.Is(err, healer.ErrShuttingDown) {
		return codes.Unavailable
	}
	switch healer.KindOf(err) {
	case healer.KindInvalid:
		return codes.InvalidArgument
	case healer.KindNotFound:
		return codes.NotFound
	case healer.KindBusy:
		return codes.Aborted
	case healer.KindUnauthenticated:
		return codes.Unauthenticated
	case healer.KindDisabled:
		return codes.Unimplemented
	case healer.KindUnknown:
	}
	// Only the end of the caller's own context counts: if the engine's deadline has
	// passed, the operation failed.
	switch cause := ctx.Err(); {
	case cause == nil || !errors.Is(err, cause):
		return codes.Unknown
	case errors.Is(cause, context.Canceled):
		return codes.Canceled
	default:
		return codes.DeadlineExceeded
	}
}
