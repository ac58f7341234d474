package ops

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ReadFileQuery asks for a file beneath a directory.
type ReadFileQuery struct {
	Dir, Name string
	// Limit is in bytes; a longer file is an error.
	Limit int
}

// readFile reads a regular file. The directory is ours to know; who can write in it
// may have put anything there, so no link in the name is followed, and what would wait
// for a writer, or is a device, is not read.
func readFile(q ReadFileQuery) ([]byte, error) {
	dir, err := retryEINTR(func() (int, error) {
		return unix.Open(q.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", q.Dir, err)
	}
	defer unix.Close(dir)
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat2(dir, q.Name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
	if err != nil {
		return nil, fmt.Errorf("open %s beneath %s: %w", q.Name, q.Dir, err)
	}
	f := os.NewFile(uintptr(fd), q.Name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%s beneath %s: %w", q.Name, q.Dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s beneath %s is no regular file", q.Name, q.Dir)
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(q.Limit)+1))
	if err != nil {
		return nil, fmt.Errorf("read %s beneath %s: %w", q.Name, q.Dir, err)
	}
	if len(text) > q.Limit {
		return nil, fmt.Errorf("%s beneath %s is longer than %d bytes", q.Name, q.Dir, q.Limit)
	}
	return text, nil
}
