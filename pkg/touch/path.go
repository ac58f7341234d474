package touch

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// leaf is a path resolved up to its last component: the directory is held by a
// descriptor, so that a swap of any component between check and use gains
// nothing.
type leaf struct {
	dir  int
	name string
}

func (l leaf) close() { _ = unix.Close(l.dir) }

// openLeaf resolves all but the last component of an absolute, clean path. A
// symbolic link in any of them gives ELOOP.
func openLeaf(p string) (leaf, error) {
	dir, name := path.Split(p)
	if !strings.HasPrefix(p, "/") || name == "" {
		return leaf{}, fmt.Errorf("%q is not an absolute path: %w", p, unix.EINVAL)
	}
	fd, err := openDir(unix.AT_FDCWD, path.Clean(dir), 0)
	if err != nil {
		return leaf{}, fmt.Errorf("resolve %q: %w", dir, err)
	}
	return leaf{dir: fd, name: name}, nil
}

// openDir opens a directory as a mere reference, following no link.
func openDir(at int, p string, resolve uint64) (int, error) {
	return retryEINTR(func() (int, error) {
		return unix.Openat2(at, p, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | resolve,
		})
	})
}

// retryEINTR repeats a system call that a signal interrupted: the Go runtime
// preempts threads with signals.
func retryEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// readAt reads a small file beside a leaf, at most limit bytes of it.
func (l leaf) readAt(name string, limit int) ([]byte, error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat2(l.dir, name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK,
			Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_BENEATH,
		})
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%q is not a regular file: %w", name, unix.EINVAL)
	case info.Size() > int64(limit):
		return nil, fmt.Errorf("%q is larger than %d bytes: %w", name, limit, unix.EFBIG)
	}
	buf := make([]byte, info.Size())
	n, err := f.ReadAt(buf, 0)
	if n < len(buf) {
		return nil, err
	}
	return buf, nil
}

// refuse makes an error that says "must not", not "went wrong".
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", worker.ErrRefused, fmt.Sprintf(format, args...))
}
