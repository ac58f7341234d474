package healer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/internal/worker"
)

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		op, fs string
		err    error
		want   string
	}{
		{OpProbe, "nfs4", syscall.EACCES, "retriable/permission"},
		{"rebind", "nfs4", syscall.EACCES, "terminal/permission"},
		{OpProbe, "", syscall.EPERM, "retriable/permission"},
		{"rebind", "", syscall.EPERM, "terminal/permission"},
		{OpProbe, "nfs", syscall.ESTALE, "transient/execution"},
		{OpProbe, "nfs4", syscall.ESTALE, "transient/execution"},
		{OpProbe, "fuse.x", syscall.ESTALE, "retriable/execution"},
		{"rebind", "nfs", syscall.ESTALE, "retriable/execution"},
		{OpProbe, "", syscall.ENOTCONN, "retriable/execution"},
		{"rebind", "", syscall.EBUSY, "transient/execution"},
		{"rebind", "", syscall.ENOMEM, "transient/execution"},
		{"rebind", "", syscall.EINTR, "transient/execution"},
		{"rebind", "", syscall.ETIMEDOUT, "transient/timeout"},
		{"rebind", "", syscall.ENOENT, "retriable/validation"},
		{"rebind", "", syscall.ELOOP, "terminal/validation"},
		{"rebind", "", syscall.EINVAL, "terminal/validation"},
		{"rebind", "", syscall.ENOSYS, "terminal/execution"},
		{OpProbe, "ext4", syscall.EROFS, "terminal/execution"},
		{OpProbe, "xfs", syscall.EUCLEAN, "terminal/execution"},
		{OpProbe, "xfs", syscall.EIO, "retriable/execution"},
		{OpProbe, "", syscall.ENXIO, "terminal/execution"},
		{"", "", syscall.EXDEV, "retriable/unknown"},
		{"", "", errors.New("plain"), "retriable/unknown"},
		{"", "", nil, "retriable/unknown"},
		// A type switch would miss what is wrapped.
		{"rebind", "", fmt.Errorf("a: %w", &os.PathError{Op: "open", Path: "/x", Err: syscall.EBUSY}), "transient/execution"},
		{"rebind", "", fmt.Errorf("%w: taking ours off: %w", ErrRefused, syscall.EBUSY), "retriable/validation"},
		{"rebind", "", fmt.Errorf("a: %w", worker.ErrTimeout), "retriable/timeout"},
		{"rebind", "", worker.ErrStuck, "retriable/timeout"},
		{"rebind", "", worker.ErrLeft, "retriable/timeout"},
		{"rebind", "", context.DeadlineExceeded, "retriable/timeout"},
		{"rebind", "", worker.ErrLost, "transient/execution"},
		{"rebind", "", worker.ErrNoWorker, "transient/execution"},
		{"rebind", "", context.Canceled, "transient/execution"},
		{"", "", ErrShuttingDown, "transient/execution"},
		{"", "", &Error{Kind: KindBusy}, "transient/execution"},
		{"", "", NotFound("no such volume"), "terminal/validation"},
		{"", "", Invalid("volume_id", "is required"), "terminal/validation"},
		{"", "", &Error{Kind: KindDisabled}, "terminal/validation"},
		{"", "", &Error{Kind: KindUnauthenticated}, "terminal/permission"},
		{"", "", Failed("umount", syscall.EBUSY), "transient/execution"},
		// What a step says of itself counts more than the kind of what it wraps.
		{"rebind", "", fmt.Errorf("%w: %w", ErrRefused, NotFound("no such volume")), "retriable/validation"},
	} {
		if got := Classify(tc.op, tc.fs, tc.err).String(); got != tc.want {
			t.Errorf("%s %s %v: %s, want %s", tc.op, tc.fs, tc.err, got, tc.want)
		}
	}
}

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
