package healer

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// ErrnoRow is the class of some errnos.
type ErrnoRow struct {
	Errnos []syscall.Errno
	Class  api.Class
}

// ErrnoRows returns the one table of errnos; docs/errors.md prints it. The first row that
// matches counts.
func ErrnoRows() []ErrnoRow { return slices.Clone(errnoRows) }

var errnoRows = []ErrnoRow{
	// A refused step of ours means that the healer lacks a privilege.
	{[]syscall.Errno{syscall.EACCES, syscall.EPERM}, api.Class{Tier: api.Terminal, Type: api.TypePermission}},
	{[]syscall.Errno{syscall.ESTALE, syscall.ENOTCONN, syscall.EIO}, api.Class{Tier: api.Retriable, Type: api.TypeExecution}},
	{[]syscall.Errno{
		syscall.EBUSY, syscall.EAGAIN, syscall.EINTR, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE,
	}, api.Class{Tier: api.Transient, Type: api.TypeExecution}},
	{[]syscall.Errno{syscall.ETIMEDOUT}, api.Class{Tier: api.Transient, Type: api.TypeTimeout}},
	{[]syscall.Errno{syscall.ENOENT}, api.Class{Tier: api.Retriable, Type: api.TypeValidation}},
	{[]syscall.Errno{syscall.ELOOP, syscall.EINVAL}, api.Class{Tier: api.Terminal, Type: api.TypeValidation}},
	{[]syscall.Errno{
		syscall.ENOSYS, syscall.EROFS, syscall.EUCLEAN, syscall.ENXIO, syscall.ENODEV,
	}, api.Class{Tier: api.Terminal, Type: api.TypeExecution}},
}

// ErrnoName returns the name of the errno behind an error; empty where there is none.
func ErrnoName(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return ""
	}
	return facts.ErrnoName(errno)
}

// Classified is an error that knows its class: the answer of a driver.
type Classified interface {
	error
	Class() api.Class
}

// Class returns the class that all errors of a kind have; the zero one: that of their cause.
func (k Kind) Class() api.Class {
	return map[Kind]api.Class{
		KindInvalid: {Tier: api.Terminal, Type: api.TypeValidation}, KindNotFound: {Tier: api.Terminal, Type: api.TypeValidation}, KindBusy: {Tier: api.Transient, Type: api.TypeExecution},
		KindUnauthenticated: {Tier: api.Terminal, Type: api.TypePermission}, KindDisabled: {Tier: api.Terminal, Type: api.TypeValidation},
	}[k]
}

// OwnRow is the class of an error of the server's own, which counts more than an errno.
type OwnRow struct {
	What  string
	Is    []error
	Class api.Class
}

// OwnRows returns the one table of them; docs/errors.md prints it. The first row that
// matches counts.
func OwnRows() []OwnRow { return slices.Clone(ownRows) }

var ownRows = []OwnRow{
	{"the server ends", []error{ErrShuttingDown}, api.Class{Tier: api.Transient, Type: api.TypeExecution}},
	{"nobody listens at the driver's socket", []error{ErrDriverAway}, api.Class{Tier: api.Transient, Type: api.TypeExecution}},
	{"a step found that it must not go on", []error{ErrRefused}, api.Class{Tier: api.Retriable, Type: api.TypeValidation}},
	{"there was no answer in time", []error{worker.ErrTimeout, worker.ErrStuck, worker.ErrLeft, context.DeadlineExceeded}, api.Class{Tier: api.Retriable, Type: api.TypeTimeout}},
	{"a worker ended, or none could be started; the work was cancelled", []error{worker.ErrLost, worker.ErrNoWorker, context.Canceled}, api.Class{Tier: api.Transient, Type: api.TypeExecution}},
}

// Classify looks an error up by what it says of itself, by the server's own errors, by its
// kind, and by errno.
func Classify(err error) api.Class {
	var known Classified
	if errors.As(err, &known) {
		c := known.Class()
		if !slices.Contains([]api.Type{api.TypePermission, api.TypeExecution, api.TypeValidation, api.TypeTimeout}, c.Type) {
			c.Type = api.TypeUnknown // a provider's own would be a metric's label
		}
		if !slices.Contains([]api.Tier{api.Transient, api.Retriable, api.Terminal}, c.Tier) {
			c.Tier = api.Retriable
		}
		return c
	}
	for _, row := range ownRows {
		if slices.ContainsFunc(row.Is, func(of error) bool { return errors.Is(err, of) }) {
			return row.Class
		}
	}
	if c := KindOf(err).Class(); c != (api.Class{}) {
		return c
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		for _, row := range errnoRows {
			if slices.Contains(row.Errnos, errno) {
				return row.Class
			}
		}
	}
	return api.Class{Tier: api.Retriable, Type: api.TypeUnknown}
}
