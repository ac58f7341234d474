package nodeserver

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxSocketPathBytes is sun_path without the final NUL (unix(7)).
	maxSocketPathBytes = 107
	socketDirMode      = 0o700
	groupDirMode       = 0o750
	groupSocketMode    = 0o660
	// socketUmask leaves 0600 of the 0777 that bind(2) asks for.
	socketUmask = 0o177
	// dialTimeout is for asking whether a socket is live. A unix connect does
	// not wait for the other side to accept.
	dialTimeout = time.Second
)

// Listen opens the server's socket at an endpoint "unix:///path" or
// "unix:/path". A missing directory is made (0700), the socket has mode 0600
// from its first moment. What is at the path already is replaced only when it
// is a socket that nobody listens on. Closing the listener removes the socket,
// unless another one stands there by then.
//
// Listen sets the umask of the process for an instant: call it before anything
// else creates files.
func Listen(endpoint string) (net.Listener, error) {
	return listen(endpoint, func(string, fs.FileMode) error { return nil })
}

// ListenForGroup is Listen for a socket (0660) that the members of a group reach,
// too, in a directory (0750) of its own.
func ListenForGroup(endpoint string, gid int) (net.Listener, error) {
	return listen(endpoint, func(path string, mode fs.FileMode) error {
		if err := os.Chown(path, -1, gid); err != nil {
			return err
		}
		return os.Chmod(path, mode) //nolint:gosec // for the group, and nobody else
	})
}

// listen makes the directory and the socket, both for the server's user alone,
// and then lets share give them to others.
func listen(endpoint string, share func(path string, mode fs.FileMode) error) (net.Listener, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, socketDirMode); err != nil {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	// From looking at what is there to our own bind nobody may come between:
	// two servers starting at once would each take the other's for stale.
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := makePrivate(path); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := bind(path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(share(path, groupSocketMode), share(dir, groupDirMode)); err != nil {
		unlock() // which closing takes, too
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return l, nil
}

// makePrivate takes a directory that was made for us with a wider mode, as
// kubelet makes a hostPath, down to 0700. One that others use too is left alone.
func makePrivate(path string) error {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			return nil
		}
	}
	if err := os.Chmod(dir, socketDirMode); err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	return nil
}

func socketPath(endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix:")
	if !ok {
		return "", fmt.Errorf("endpoint %s: must be unix:///path or unix:/path", quoted(endpoint))
	}
	path = strings.TrimPrefix(path, "//")
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || strings.ContainsRune(path, 0):
		return "", fmt.Errorf("endpoint %s: what follows unix: must be an absolute, clean path", quoted(endpoint))
	case len(path) > maxSocketPathBytes:
		return "", fmt.Errorf("endpoint %s: the path has %d bytes, a unix socket's has at most %d", quoted(endpoint), len(path), maxSocketPathBytes)
	}
	return path, nil
}

// lockDir locks a directory against other servers, after it has seen that
// nobody else could put a socket of their own in there.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir) //nolint:gosec // from the command line
	if err != nil {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	defer func() {
		if err != nil {
			_ = d.Close()
		}
	}()
	info, err := d.Stat()
	if err != nil {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("socket directory %s: must belong to uid %d, which the server runs as", dir, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return nil, fmt.Errorf("socket directory %s: mode %04o lets others write to it; use a directory with mode 0700", dir, mode)
	}
	if err := flock(d); err != nil {
		return nil, fmt.Errorf("socket directory %s: %w", dir, err)
	}
	return func() { _ = d.Close() }, nil
}

// flock waits a moment: whoever else holds the lock is done in milliseconds.
func flock(d *os.File) error {
	const tries, pause = 200, 10 * time.Millisecond
	for range tries {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("flock: %w", err)
		}
		time.Sleep(pause)
	}
	return errors.New("flock: another process keeps the directory locked")
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("socket %s: something else is there, and is left alone (%s)", path, info.Mode())
	}
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("socket %s: another server listens on it", path)
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("socket %s: another server listens on it and is too busy to answer", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("socket %s: cannot tell whether it is in use: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("stale socket: %w", err)
	}
	return nil
}

// umaskMu keeps two binds from restoring each other's umask, which belongs to
// the whole process.
var umaskMu sync.Mutex

func bind(path string) (net.Listener, error) {
	umaskMu.Lock()
	old := syscall.Umask(socketUmask)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	syscall.Umask(old)
	umaskMu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// Go would remove whatever is at the path by then.
	l.SetUnlinkOnClose(false)
	info, err := os.Lstat(path)
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	return &ownListener{UnixListener: l, path: path, own: info}, nil
}

// ownListener removes its socket file, and no other, when it is closed.
type ownListener struct {
	*net.UnixListener

	path string
	own  fs.FileInfo
	once sync.Once
}

// Close implements net.Listener. The file goes first: a server that starts in
// between finds nothing, and never a stale socket that is about to vanish.
func (l *ownListener) Close() error {
	l.once.Do(func() {
		if unlock, err := lockDir(filepath.Dir(l.path)); err == nil {
			defer unlock()
		}
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.own) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}
