package node

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
)

// Every health check reads these files, so they are read with bare system calls into
// the stack: os.ReadFile registers each descriptor with the runtime's poller, and
// costs three times as much.

// attributeSize is more than any sysfs file read here shows. The longest is a
// path, which the kernel cuts at this length.
const attributeSize = 4 << 10

// readFile returns the text of a file of sysfs without the newline at its end. The
// error is the bare errno.
func readFile(name string) (string, error) {
	fd, err := mount.Open(unix.AT_FDCWD, name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var buf [attributeSize]byte
	n, err := mount.RetryEINTR(func() (int, error) { return unix.Read(fd, buf[:]) })
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(buf[:n]), "\n"), nil
}

// text is readFile; empty when the file cannot be read.
func text(name string) string {
	t, err := readFile(name)
	if err != nil {
		return ""
	}
	return t
}

// follow returns the directory that a link of sysfs leads to. One readlink(2) is
// enough: these links have no links on the way.
func follow(link string) (string, error) {
	var buf [attributeSize]byte
	n, err := unix.Readlink(link, buf[:])
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(link), string(buf[:n])), nil
}

func exists(name string) bool { return unix.Access(name, unix.F_OK) == nil }
