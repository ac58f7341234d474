package mounts

import (
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// Row says what an errno of a probe means.
type Row struct {
	// Errnos are those that it is about; none: all others.
	Errnos []syscall.Errno
	// Where says on what, in words; empty: anywhere.
	Where  string
	Reason healer.Reason

	advice string
	fits   func(a host.Answer, sb host.Superblock) bool
}

// Rows returns the one table of what a probe answers; docs/errors.md prints it. The first
// row that fits counts.
func Rows() []Row { return slices.Clone(rows) }

var rows = []Row{
	{Errnos: []syscall.Errno{
		syscall.EACCES, syscall.EPERM, syscall.EKEYEXPIRED, syscall.EKEYREVOKED, syscall.EKEYREJECTED, syscall.ENOKEY,
	}, Reason: healer.PermissionDenied},
	// EBLOCKLISTED of linux/ceph/rados.h
	{Errnos: []syscall.Errno{syscall.ESHUTDOWN}, Where: "Ceph", Reason: healer.PermissionDenied, fits: onCeph},
	{Errnos: []syscall.Errno{syscall.ENOTCONN, syscall.ECONNABORTED}, Reason: healer.Disconnected, advice: adviceDaemon},
	{Errnos: []syscall.Errno{syscall.ESTALE}, Reason: healer.StaleFileHandle, advice: adviceDaemon},
	{
		Errnos: []syscall.Errno{syscall.ENXIO, syscall.ENODEV, syscall.ENOMEDIUM}, Where: "a filesystem on a block device",
		Reason: healer.DeviceMissing, advice: adviceDevice, fits: onDevice,
	},
	{Where: "a read of the block device itself", Reason: healer.DeviceReadError, advice: adviceDevice, fits: ofDevice},
	{Reason: healer.IOError, advice: adviceShutdown},
}

func onCeph(_ host.Answer, sb host.Superblock) bool   { return isCeph(sb.FSType) }
func onDevice(_ host.Answer, sb host.Superblock) bool { return sb.Device != nil }
func ofDevice(a host.Answer, _ host.Superblock) bool  { return a.OfDevice() }

// rowOf returns what an errno from a probe means.
func rowOf(a host.Answer, sb host.Superblock) Row {
	at := slices.IndexFunc(rows, func(r Row) bool {
		return (len(r.Errnos) == 0 || slices.Contains(r.Errnos, a.Errno)) && (r.fits == nil || r.fits(a, sb))
	})
	return rows[at] // the last one fits everything
}
