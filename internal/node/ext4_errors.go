package node

import (
	"strconv"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Ext4Errors reads the error counter of the ext4 on the device with the kernel's
// name for it; nil when there is none, as with another filesystem. One file is
// read when there are no errors.
//
// The attributes show the superblock in memory and take no lock
// (fs/ext4/sysfs.c). The error reaches them through a work item that starts a
// transaction: a moment later, and perhaps not while the device hangs.
func (s Sysfs) Ext4Errors(name string) *facts.FilesystemErrors {
	dir := s.ext4(name)
	count, err := strconv.ParseUint(text(dir+"/errors_count"), 10, 64)
	if err != nil {
		return nil
	}
	if count == 0 {
		return &facts.FilesystemErrors{}
	}
	return &facts.FilesystemErrors{
		Count:        count,
		LastTime:     seconds(dir + "/last_error_time"),
		LastFunction: text(dir + "/last_error_func"),
	}
}

// ext4 returns the directory of the ext4 on the device with the kernel's name for it.
func (s Sysfs) ext4(name string) string {
	return string(s) + "/fs/ext4/" + strings.ReplaceAll(name, "/", "!")
}

// seconds reads a time that counts from the epoch; zero when there is none.
func seconds(name string) time.Time {
	n, err := strconv.ParseInt(text(name), 10, 64)
	if err != nil || n == 0 {
		return time.Time{}
	}
	return time.Unix(n, 0)
}
