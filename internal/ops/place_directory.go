package ops

import (
	"fmt"

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
	fd, err := openListing(dir, name)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 512) // the longest name has 255 bytes
	for {
		n, err := retryEINTR(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil || n == 0 {
			return err == nil, err
		}
		if _, count, _ := unix.ParseDirent(buf[:n], 1, nil); count > 0 { // it leaves out . and ..
			return false, nil
		}
	}
}
