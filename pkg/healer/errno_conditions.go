package healer

import (
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// The operations whose errnos are evidence of a condition, beside those of a probe (facts.Answer).
const (
	// OpWriteCheck is a write to a volume that answers reads.
	OpWriteCheck = "write check"
	// OpConnect is a connection to the server of a network filesystem.
	OpConnect = "connection"
)

// ConditionRow says what an errno that storage answered with means.
type ConditionRow struct {
	// Errnos are those that it is about; none: all others.
	Errnos []syscall.Errno
	// Op is the operation; empty: any but OpConnect.
	Op string
	// Filesystem says on what, in words; empty: on any.
	Filesystem string
	Reason     Reason
	// Beside are the conditions that the provider of the filesystem may find as well: it
	// looks for their evidence only then.
	Beside []Reason

	fits func(Superblock) bool
}

// ConditionRows returns the one table of errnos and conditions; docs/errors.md prints it.
// The first row that fits counts.
func ConditionRows() []ConditionRow { return slices.Clone(conditionRows) }

// A row without ServerUnreachable beside it is about what a server itself answers with.
var conditionRows = []ConditionRow{
	{Errnos: facts.Denials(), Reason: PermissionDenied},
	// EBLOCKLISTED of linux/ceph/rados.h: the cluster evicted this node.
	{Errnos: []syscall.Errno{syscall.ESHUTDOWN}, Filesystem: "Ceph", Reason: PermissionDenied, fits: onCeph},
	{Errnos: []syscall.Errno{syscall.ENOTCONN, syscall.ECONNABORTED}, Reason: Disconnected, Beside: []Reason{DaemonGone, ServerUnreachable}},
	{Errnos: []syscall.Errno{syscall.ESTALE}, Reason: StaleFileHandle},
	{Errnos: []syscall.Errno{syscall.ENXIO, syscall.ENODEV, syscall.ENOMEDIUM}, Filesystem: "on a block device", Reason: DeviceMissing, fits: onDevice},
	{Op: facts.OpReadDevice, Reason: DeviceReadError},
	{Errnos: []syscall.Errno{syscall.EROFS}, Op: OpWriteCheck, Reason: ReadOnlyFilesystem},
	{Errnos: []syscall.Errno{syscall.ENOENT}, Reason: IOError},
	// Of a host that does not answer, or on which nothing listens. Any other errno of a
	// connection says nothing of the server.
	{Errnos: []syscall.Errno{
		syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.ETIMEDOUT,
	}, Op: OpConnect, Reason: ServerUnreachable},
	{Reason: IOError, Beside: []Reason{ServerUnreachable}},
}

func onCeph(sb Superblock) bool   { return facts.IsCeph(sb.FSType) }
func onDevice(sb Superblock) bool { return sb.Device != nil }

// ConditionOfProbe returns what the errno of a probe means; false without an errno.
func ConditionOfProbe(sb Superblock) (ConditionRow, bool) {
	return ConditionOf(sb.Answer.Op, sb.Answer.Errno, sb)
}

// ConditionOf returns what the errno of an operation means; false without an errno, or
// where that of a connection says nothing of the server.
func ConditionOf(op string, errno syscall.Errno, sb Superblock) (ConditionRow, bool) {
	at := slices.IndexFunc(conditionRows, func(r ConditionRow) bool {
		return (len(r.Errnos) == 0 || slices.Contains(r.Errnos, errno)) &&
			(r.Op == op || r.Op == "" && op != OpConnect) && (r.fits == nil || r.fits(sb))
	})
	if errno == 0 || at < 0 {
		return ConditionRow{}, false
	}
	return conditionRows[at], true
}
