package ops

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
)

// checkDirectory checks that the target, at which nothing is mounted, is a directory if the clone's
// root is one, and that it is empty: a pod may have written into it while the volume was not mounted,
// and a mount would hide those files.
func (p *placement) checkDirectory(fd int) error {
	var here, root unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_SIZE, &here); err != nil {
		return fmt.Errorf("statx of the mount point: %w", err)
	}
	if err := unix.Statx(p.clone, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &root); err != nil {
		return fmt.Errorf("statx of the clone: %w", err)
	}
	isDir := here.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir != (root.Mode&unix.S_IFMT == unix.S_IFDIR) {
		return refuse("the mount point and the volume are not both directories or both files")
	}
	empty, err := here.Size == 0, error(nil)
	if isDir {
		if empty, err = emptyDirectory(fd, "."); err != nil {
			return fmt.Errorf("look whether the directory is empty: %w", err)
		}
	}
	if !empty {
		return fmt.Errorf("%w: a mount would hide what lies there, on the node's disk: %w", operation.ErrRefused, unix.ENOTEMPTY)
	}
	return nil
}

// emptyDirectory reads a directory, by its name in another one, until the first name in it. It lies on
// the node's disk, and nothing is mounted on it, so that no volume is asked.
func emptyDirectory(dir int, name string) (bool, error) {
	f, err := openListing(dir, name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}
