package host

import (
	"strconv"
	"strings"
	"syscall"
	"time"
)

// FilesystemErrors is what a filesystem itself counted. The count lives on the
// disk, over mounts and boots, until the filesystem is checked.
type FilesystemErrors struct {
	Count uint64
	// FirstTime and LastTime are by the node's clock at the time, in seconds.
	FirstTime time.Time
	LastTime  time.Time
	// LastFunction is the kernel's function that saw the last error.
	LastFunction string
	// LastErrno is the cause of the last error if it was recorded: EUCLEAN
	// for a damaged filesystem, EBADMSG for a checksum (Linux 5.7).
	LastErrno syscall.Errno
}

// Ext4Errors reads the error counter of the ext4 on the device with the kernel's
// name for it; nil when there is none, as with another filesystem. One file is
// read when there are no errors.
//
// The attributes show the superblock in memory and take no lock
// (fs/ext4/sysfs.c). The error reaches them through a work item that starts a
// transaction: a moment later, and perhaps not while the device hangs.
func (s Sysfs) Ext4Errors(name string) *FilesystemErrors {
	dir := string(s) + "/fs/ext4/" + strings.ReplaceAll(name, "/", "!")
	count, err := strconv.ParseUint(text(dir+"/errors_count"), 10, 64)
	if err != nil {
		return nil
	}
	if count == 0 {
		return &FilesystemErrors{}
	}
	return &FilesystemErrors{
		Count:        count,
		FirstTime:    seconds(dir + "/first_error_time"),
		LastTime:     seconds(dir + "/last_error_time"),
		LastFunction: text(dir + "/last_error_func"),
		LastErrno:    ext4Errnos[text(dir+"/last_error_errcode")],
	}
}

// seconds reads a time that counts from the epoch; zero when there is none.
func seconds(name string) time.Time {
	n, err := strconv.ParseInt(text(name), 10, 64)
	if err != nil || n == 0 {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

// ext4Errnos are the codes that ext4 writes for an errno (EXT4_ERR_* in
// fs/ext4/ext4.h); 1 is any other.
var ext4Errnos = map[string]syscall.Errno{
	"2":  syscall.EIO,
	"3":  syscall.ENOMEM,
	"4":  syscall.EBADMSG,
	"5":  syscall.EUCLEAN,
	"6":  syscall.ENOSPC,
	"7":  syscall.ENOKEY,
	"8":  syscall.EROFS,
	"9":  syscall.EFBIG,
	"10": syscall.EEXIST,
	"11": syscall.ERANGE,
	"12": syscall.EOVERFLOW,
	"13": syscall.EBUSY,
	"14": syscall.ENOTDIR,
	"15": syscall.ENOTEMPTY,
	"16": syscall.ESHUTDOWN,
	"17": syscall.EFAULT,
}
