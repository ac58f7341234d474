package host

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Loop is a loop device's backing file.
type Loop struct {
	// BackingFile is the path of the file, which may lie in another mount namespace.
	BackingFile string
	// Deleted is true when that name was removed or replaced since. (A file
	// whose own name ends in " (deleted)" looks the same.)
	Deleted bool
	// Autoclear is true when the device is detached with its last user: it was
	// set up so, or was detached while it was in use.
	Autoclear bool
	// Offset and SizeLimit are in bytes; a SizeLimit of 0 is none.
	Offset    int64
	SizeLimit int64
}

// Backing reads the path of the backing file again: it may have been removed since.
// It returns nil when no file is attached any more.
func (s Sysfs) Backing(name string, l Loop) *Loop {
	file, err := readFile(string(s) + "/block/" + name + "/loop/backing_file")
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	l.BackingFile, l.Deleted = strings.CutSuffix(file, " (deleted)")
	return &l
}

// loopOf reads the attributes of a loop device, given by its directory; for a
// partition, that of its disk. The path comes from the kernel's name cache, also when
// the filesystem that it lies on hangs (loop_attr_* in drivers/block/loop.c: a
// spinlock at most).
func loopOf(disk string) *Loop {
	if !strings.HasPrefix(filepath.Base(disk), "loop") {
		return nil
	}
	dir := disk + "/loop"
	file, err := readFile(dir + "/backing_file")
	if errors.Is(err, unix.ENOENT) {
		return nil // no file is attached
	}
	l := &Loop{Autoclear: text(dir+"/autoclear") == "1"}
	l.BackingFile, l.Deleted = strings.CutSuffix(file, " (deleted)")
	l.Offset, _ = strconv.ParseInt(text(dir+"/offset"), 10, 64)
	l.SizeLimit, _ = strconv.ParseInt(text(dir+"/sizelimit"), 10, 64)
	return l
}
