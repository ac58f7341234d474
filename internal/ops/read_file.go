package ops

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
)

// ReadFileQuery asks for a file beneath a directory.
type ReadFileQuery struct {
	Dir, Name string
	// Limit is in bytes; a longer file is an error.
	Limit int
}

// readFile reads a regular file. The directory is ours to know.
func readFile(q ReadFileQuery) ([]byte, error) {
	dir, err := mount.Open(unix.AT_FDCWD, q.Dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", q.Dir, err)
	}
	defer unix.Close(dir)
	text, err := readRegular(dir, q.Name, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("%s beneath %s: %w", q.Name, q.Dir, err)
	}
	return text, nil
}

// readRegular reads a regular file of at most limit bytes beneath a directory. Who can write in the
// directory may have put anything there, so no link in the name is followed, and what would wait
// for a writer, or is a device, is not read.
func readRegular(dir int, name string, limit int) ([]byte, error) {
	fd, err := mount.OpenOverNoLink(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, unix.RESOLVE_BENEATH)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Statx_t
	switch err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st); {
	case err != nil:
		return nil, err
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("no regular file: %w", unix.EINVAL)
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(text) > limit {
		return nil, fmt.Errorf("larger than %d bytes: %w", limit, unix.EFBIG)
	}
	return text, err
}
