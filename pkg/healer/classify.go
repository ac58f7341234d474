package healer

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/worker"
)

// Tier says whether calling again may help.
type Tier string

// The tiers of an error.
const (
	// Transient: the same call may succeed a moment later by itself.
	Transient Tier = "transient"
	// Retriable: it may succeed once something else on the node changed.
	Retriable Tier = "retriable"
	// Terminal: it fails until a person acts.
	Terminal Tier = "terminal"
)

// Type says what kind of error it is.
type Type string

// The types of an error.
const (
	TypePermission Type = "permission"
	TypeExecution  Type = "execution"
	TypeValidation Type = "validation"
	TypeTimeout    Type = "timeout"
	TypeUnknown    Type = "unknown"
)

// Class is an error's tier and type.
type Class struct {
	Tier Tier
	Type Type
}

// String returns "tier/type".
func (c Class) String() string { return string(c.Tier) + "/" + string(c.Type) }

// OpProbe is the operation name of a probe in the table.
const OpProbe = "probe"

// ErrnoRow is the class of an errno. An empty operation or filesystem matches all.
type ErrnoRow struct {
	Errno  syscall.Errno
	Op     string
	FSType string
	Class  Class
}

// ErrnoRows returns the one table of errnos; docs/errors.md prints it. The first row that
// matches counts.
func ErrnoRows() []ErrnoRow { return slices.Clone(errnoRows) }

var errnoRows = []ErrnoRow{
	// A refused probe is the storage's decision; a refused step of ours means that the
	// healer lacks a privilege.
	{syscall.EACCES, OpProbe, "", Class{Retriable, TypePermission}},
	{syscall.EPERM, OpProbe, "", Class{Retriable, TypePermission}},
	{syscall.EACCES, "", "", Class{Terminal, TypePermission}},
	{syscall.EPERM, "", "", Class{Terminal, TypePermission}},
	// ESTALE on NFS ends when the server exports the directory again.
	{syscall.ESTALE, OpProbe, "nfs", Class{Transient, TypeExecution}},
	{syscall.ESTALE, OpProbe, "nfs4", Class{Transient, TypeExecution}},
	{syscall.ESTALE, "", "", Class{Retriable, TypeExecution}},
	{syscall.ENOTCONN, "", "", Class{Retriable, TypeExecution}},
	{syscall.EBUSY, "", "", Class{Transient, TypeExecution}},
	{syscall.EAGAIN, "", "", Class{Transient, TypeExecution}},
	{syscall.EINTR, "", "", Class{Transient, TypeExecution}},
	{syscall.ENOMEM, "", "", Class{Transient, TypeExecution}},
	{syscall.EMFILE, "", "", Class{Transient, TypeExecution}},
	{syscall.ENFILE, "", "", Class{Transient, TypeExecution}},
	{syscall.ETIMEDOUT, "", "", Class{Transient, TypeTimeout}},
	{syscall.ENOENT, "", "", Class{Retriable, TypeValidation}},
	{syscall.ELOOP, "", "", Class{Terminal, TypeValidation}},
	{syscall.EINVAL, "", "", Class{Terminal, TypeValidation}},
	{syscall.ENOSYS, "", "", Class{Terminal, TypeExecution}},
	{syscall.EROFS, "", "", Class{Terminal, TypeExecution}},
	{syscall.EUCLEAN, "", "", Class{Terminal, TypeExecution}},
	{syscall.ENXIO, "", "", Class{Terminal, TypeExecution}},
	{syscall.ENODEV, "", "", Class{Terminal, TypeExecution}},
	{syscall.EIO, "", "", Class{Retriable, TypeExecution}},
}

// ErrnoName returns the name of the errno behind an error; empty where there is none.
func ErrnoName(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return ""
	}
	return host.ErrnoName(errno)
}

// Classified is an error that knows its class: the answer of a driver.
type Classified interface {
	error
	Class() Class
}

// Class returns the class that all errors of a kind have; false: that of their cause.
func (k Kind) Class() (Class, bool) {
	c, fixed := map[Kind]Class{
		KindInvalid: {Terminal, TypeValidation}, KindNotFound: {Terminal, TypeValidation}, KindBusy: {Transient, TypeExecution},
		KindUnauthenticated: {Terminal, TypePermission}, KindDisabled: {Terminal, TypeValidation},
	}[k]
	return c, fixed
}

// OwnRow is the class of an error of the server's own, which counts more than an errno.
type OwnRow struct {
	// What it is, in words.
	What string
	// Is has the errors.
	Is    []error
	Class Class
}

// OwnRows returns the one table of them; docs/errors.md prints it. The first row that
// matches counts.
func OwnRows() []OwnRow { return slices.Clone(ownRows) }

var ownRows = []OwnRow{
	{"the server ends", []error{ErrShuttingDown}, Class{Transient, TypeExecution}},
	{"a step found that it must not go on", []error{ErrRefused}, Class{Retriable, TypeValidation}},
	{"there was no answer in time", []error{worker.ErrTimeout, worker.ErrStuck, worker.ErrLeft, context.DeadlineExceeded}, Class{Retriable, TypeTimeout}},
	{"a worker ended, or none could be started; the work was cancelled", []error{worker.ErrLost, worker.ErrNoWorker, context.Canceled}, Class{Transient, TypeExecution}},
}

// Classify looks an error up by what it says of itself, by the server's own errors, by its
// kind, and by errno, operation and filesystem type.
func Classify(op, fsType string, err error) Class {
	var known Classified
	if errors.As(err, &known) {
		return known.Class()
	}
	for _, row := range ownRows {
		if slices.ContainsFunc(row.Is, func(of error) bool { return errors.Is(err, of) }) {
			return row.Class
		}
	}
	if c, fixed := KindOf(err).Class(); fixed {
		return c
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		for _, row := range errnoRows {
			if row.Errno == errno && (row.Op == "" || row.Op == op) && (row.FSType == "" || row.FSType == fsType) {
				return row.Class
			}
		}
	}
	return Class{Retriable, TypeUnknown}
}
