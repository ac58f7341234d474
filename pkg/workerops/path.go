package workerops

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// leaf is a path resolved up to its last component: the directory is held by a
// descriptor, so that a swap of any component between check and use gains
// nothing.
type leaf struct {
	dir  int
	name string
	self self
}

func (l leaf) close() { _ = unix.Close(l.dir) }

// openLeaf resolves all but the last component of an absolute, clean path. A
// symbolic link in any of them gives ELOOP.
func openLeaf(p string) (leaf, error) {
	dir, name := path.Split(p)
	if !strings.HasPrefix(p, "/") || name == "" {
		return leaf{}, fmt.Errorf("%q is not an absolute path: %w", p, unix.EINVAL)
	}
	fd, err := openDir(path.Clean(dir))
	if err != nil {
		return leaf{}, fmt.Errorf("resolve %q: %w", dir, err)
	}
	return leaf{dir: fd, name: name}, nil
}

// openDir opens a directory as a mere reference, following no link.
func openDir(p string) (int, error) {
	return retryEINTR(func() (int, error) {
		return unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
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

// stamp looks at a small file without opening it; zero when it cannot.
func (l leaf) stamp() FileStamp {
	var st unix.Statx_t
	if unix.Statx(l.dir, l.name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &st) != nil {
		return FileStamp{}
	}
	return stampOf(&st)
}

// young is the age below which a change time proves nothing: the clock of a
// filesystem has ticks, and a second write may come within the same one.
const young = time.Second

func stampOf(st *unix.Statx_t) FileStamp {
	if time.Since(time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec))) < young {
		return FileStamp{}
	}
	return FileStamp{
		Inode: st.Ino, Size: st.Size, Seconds: st.Ctime.Sec, Nanoseconds: st.Ctime.Nsec,
		Major: st.Dev_major, Minor: st.Dev_minor,
	}
}

// read reads a regular file of at most limit bytes.
func (l leaf) read(limit uint64) ([]byte, FileStamp, error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat2(l.dir, l.name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK,
			Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_BENEATH,
		})
	})
	if err != nil {
		return nil, FileStamp{}, err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st)
	switch {
	case err != nil:
		return nil, FileStamp{}, err
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, FileStamp{}, fmt.Errorf("%q is not a regular file: %w", l.name, unix.EINVAL)
	case st.Size > limit:
		return nil, FileStamp{}, fmt.Errorf("%q is larger than %d bytes: %w", l.name, limit, unix.EFBIG)
	}
	buf := make([]byte, st.Size)
	for at := 0; at < len(buf); {
		n, err := retryEINTR(func() (int, error) { return unix.Pread(fd, buf[at:], int64(at)) })
		if err != nil {
			return nil, FileStamp{}, err
		}
		if n == 0 {
			return nil, FileStamp{}, fmt.Errorf("%q became shorter: %w", l.name, unix.EAGAIN)
		}
		at += n
	}
	return buf, stampOf(&st), nil
}

// refuse makes an error that says "must not", not "went wrong".
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", worker.ErrRefused, fmt.Sprintf(format, args...))
}
