package host

import (
	"errors"
	"path/filepath"
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
}

// loopOf reads the attributes of a loop device, given by its directory; for a
// partition, that of its disk. The path comes from the kernel's name cache, also when
// the filesystem that it lies on hangs (loop_attr_* in drivers/block/loop.c: a
// spinlock at most).
func loopOf(disk string) *Loop {
	if !strings.HasPrefix(filepath.Base(disk), "loop") {
		return nil
	}
	file, err := readFile(disk + "/loop/backing_file")
	if errors.Is(err, unix.ENOENT) {
		return nil // no file is attached
	}
	l := &Loop{}
	l.BackingFile, l.Deleted = strings.CutSuffix(file, " (deleted)")
	return l
}
