package node

import (
	"path/filepath"
	"strings"
)

// backingFileGone reports whether the name of the file behind a loop device, given by its
// directory, was removed or replaced. (A file whose own name ends in " (deleted)" looks
// the same.) The path comes from the kernel's name cache, also when the filesystem that
// it lies on hangs (loop_attr_* in drivers/block/loop.c: a spinlock at most).
func backingFileGone(disk string) bool {
	return strings.HasPrefix(filepath.Base(disk), "loop") && strings.HasSuffix(text(disk+"/loop/backing_file"), " (deleted)")
}
