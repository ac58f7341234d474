package nodeserver

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// statusBytes bounds the text of an error: it travels in a header, where
// callers have limits of their own.
const statusBytes = 1024

// errDraining answers a call that came in while the server stops.
var errDraining = errors.New("the server is shutting down")

// toStatus puts an error on the wire. A status that the engine brought from
// somewhere else (a driver's answer, say) is text here: its code speaks of
// another call.
func toStatus(ctx context.Context, err error, secrets map[string]string) error {
	return status.Error(codeOf(ctx, err), oneLine(healer.Secrets(secrets).Redact(err.Error()), statusBytes))
}

// codeOf maps by kind alone. UNIMPLEMENTED tells callers never to try again,
// and so has exactly one way here.
func codeOf(ctx context.Context, err error) codes.Code {
	// No code of the contract: it is what a caller gets from a socket that is
	// gone, which is what ours is about to be.
	if errors.Is(err, errDraining) {
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
	// Only the caller's own end counts: a deadline of ours that passed is a
	// failed operation.
	switch cause := ctx.Err(); {
	case cause == nil || !errors.Is(err, cause):
		return codes.Unknown
	case errors.Is(cause, context.Canceled):
		return codes.Canceled
	default:
		return codes.DeadlineExceeded
	}
}
