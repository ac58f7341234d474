package healer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/api"
)

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{err: syscall.EACCES, want: "terminal/permission"},
		{err: syscall.EPERM, want: "terminal/permission"},
		{err: syscall.ESTALE, want: "retriable/execution"},
		{err: syscall.ENOTCONN, want: "retriable/execution"},
		{err: syscall.EBUSY, want: "transient/execution"},
		{err: syscall.ENOMEM, want: "transient/execution"},
		{err: syscall.EINTR, want: "transient/execution"},
		{err: syscall.ETIMEDOUT, want: "transient/timeout"},
		{err: syscall.ENOENT, want: "retriable/validation"},
		{err: syscall.ELOOP, want: "terminal/validation"},
		{err: syscall.EINVAL, want: "terminal/validation"},
		{err: syscall.ENOSYS, want: "terminal/execution"},
		{err: syscall.EROFS, want: "terminal/execution"},
		{err: syscall.EUCLEAN, want: "terminal/execution"},
		{err: syscall.EIO, want: "retriable/execution"},
		{err: syscall.ENXIO, want: "terminal/execution"},
		{err: syscall.EXDEV, want: "retriable/unknown"},
		{err: errors.New("plain"), want: "retriable/unknown"},
		{want: "retriable/unknown"},
		// A type switch would miss what is wrapped.
		{err: fmt.Errorf("a: %w", &os.PathError{Op: "open", Path: "/x", Err: syscall.EBUSY}), want: "transient/execution"},
		{err: fmt.Errorf("%w: taking ours off: %w", ErrRefused, syscall.EBUSY), want: "retriable/validation"},
		{err: fmt.Errorf("a: %w", worker.ErrTimeout), want: "retriable/timeout"},
		{err: worker.ErrStuck, want: "retriable/timeout"},
		{err: worker.ErrLeft, want: "retriable/timeout"},
		{err: context.DeadlineExceeded, want: "retriable/timeout"},
		{err: worker.ErrLost, want: "transient/execution"},
		{err: worker.ErrNoWorker, want: "transient/execution"},
		{err: context.Canceled, want: "transient/execution"},
		{err: ErrShuttingDown, want: "transient/execution"},
		{err: &Error{Kind: KindBusy}, want: "transient/execution"},
		{err: NotFound("no such volume"), want: "terminal/validation"},
		{err: Invalid("volume_id", "is required"), want: "terminal/validation"},
		{err: &Error{Kind: KindDisabled}, want: "terminal/validation"},
		{err: &Error{Kind: KindUnauthenticated}, want: "terminal/permission"},
		{err: Failed("umount", syscall.EBUSY), want: "transient/execution"},
		// What a step says of itself counts more than the kind of what it wraps.
		{err: fmt.Errorf("%w: %w", ErrRefused, NotFound("no such volume")), want: "retriable/validation"},
		{err: classified{api.Transient, api.TypeTimeout}, want: "transient/timeout"},
		{err: classified{api.Transient, "\xff"}, want: "transient/unknown"},
		{err: classified{Tier: api.Terminal}, want: "terminal/unknown"},
		{err: classified{Type: api.TypeExecution}, want: "retriable/execution"},
		{err: classified{"\xff", "\xff"}, want: "retriable/unknown"},
	} {
		if got := Classify(tc.err).String(); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.err, got, tc.want)
		}
	}
}

// classified is an error of a provider's.
type classified api.Class

func (classified) Error() string      { return "mine" }
func (c classified) Class() api.Class { return api.Class(c) }

func TestKinds(t *testing.T) {
	cause := errors.New("cause")
	for want, err := range map[Kind]error{
		KindInvalid: Invalid("volume_id", "is longer than %d bytes", 1024), KindNotFound: NotFound("no %s", "such"),
		KindUnknown: Failed("umount", cause),
	} {
		if got := KindOf(fmt.Errorf("wrapped: %w", err)); got != want {
			t.Errorf("%v has kind %d, want %d", err, got, want)
		}
	}
	for k, want := range map[Kind]string{KindBusy: "busy", KindUnknown: "failed", -1: "failed", 99: "failed"} {
		if got := k.String(); got != want {
			t.Errorf("kind %d: %s", int(k), got)
		}
	}
	if KindOf(cause) != KindUnknown {
		t.Error("a foreign error has a kind")
	}
	if got := Invalid("volume_id", "is longer than %d bytes", 1024).Error(); got != "volume_id: is longer than 1024 bytes" {
		t.Error(got)
	}
	if err := Failed("umount", cause); err.Error() != "umount: cause" || !errors.Is(err, cause) {
		t.Error(err)
	}
}
