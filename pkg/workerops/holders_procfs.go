package workerops

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// read returns the start of a file of procfs.
func (s *scan) read(name string, limit int) ([]byte, error) {
	f, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(f)
	buf := make([]byte, limit)
	for n := 0; ; {
		got, err := retryEINTR(func() (int, error) { return unix.Read(f, buf[n:]) })
		if err != nil {
			return nil, err
		}
		if n += got; got == 0 || n == limit {
			return buf[:n], nil
		}
	}
}

func (s *scan) open(name string) (int, error) {
	return retryEINTR(func() (int, error) {
		return unix.Openat(s.proc, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	})
}

// list returns the names in a directory of procfs.
func (s *scan) list(name string) ([]string, error) {
	fd, err := s.open(name)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// readlink returns the text of a link. The text of a process's directory or open
// file is made of names that the kernel has in memory; no filesystem is asked.
func (s *scan) readlink(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(s.proc, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// parentOf returns the parent of a process, 0 when it has ended.
func (s *scan) parentOf(pid int) int {
	raw, err := s.read(strconv.Itoa(pid)+"/status", 4<<10)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if v, is := strings.CutPrefix(line, "PPid:"); is {
			parent, _ := strconv.Atoi(strings.TrimSpace(v))
			return parent
		}
	}
	return 0
}

// namespaceOf returns the inode number of the mount namespace that a process is in.
func (s *scan) namespaceOf(dir string) (uint64, error) {
	link, err := s.readlink(dir + "/ns/mnt")
	if err != nil {
		return 0, err
	}
	return mount.InodeOf(link)
}

// gone is true when the process, or what it had open, has ended meanwhile.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }
