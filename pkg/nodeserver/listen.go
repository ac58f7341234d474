package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// maxSocketPathBytes is sun_path without the final NUL (unix(7)).
	maxSocketPathBytes = 107
	socketDirMode      = 0o700
	groupDirMode       = 0o750
	groupSocketMode    = 0o660
	socketMode         = 0o600
	// dialTimeout bounds the test whether a server listens on a socket. A unix connect
	// does not wait for the other side to accept.
	dialTimeout = time.Second
)

// Listen opens the server's socket at an endpoint "unix:///path" or
// "unix:/path". It creates a missing directory (0700), and the socket with mode 0600
// from the start. It replaces an existing socket only if no process listens on it, and
// no other file. Closing the listener removes whatever file is at the path then: hold a lock that
// keeps another server from it. A directory with nothing else in it
// becomes private.
func Listen(endpoint string) (net.Listener, error) {
	return listen(endpoint, makePrivate, func(string, fs.FileMode) error { return nil })
}

// ListenBeside is Listen in a directory that others use, too, as a driver's: its mode stays. It
// may be empty, as the driver's own socket may come later.
func ListenBeside(endpoint string) (net.Listener, error) {
	stays := func(string) error { return nil }
	return listen(endpoint, stays, func(string, fs.FileMode) error { return nil })
}

// ListenForGroup is Listen for a socket (0660) that the members of a group may use, too,
// in a directory (0750) of its own.
func ListenForGroup(endpoint string, gid int) (net.Listener, error) {
	return listen(endpoint, makePrivate, func(path string, mode fs.FileMode) error {
		if err := os.Chown(path, -1, gid); err != nil {
			return err
		}
		return os.Chmod(path, mode) //nolint:gosec // for the group only
	})
}

// listen creates the directory and the socket, both for the server's user alone, then
// calls share to make them accessible to others. directory is called before the socket is made.
// That no two servers take each other's socket for stale is up to the lock of the state directory,
// which a server has before it listens.
func listen(endpoint string, directory func(path string) error, share func(path string, mode fs.FileMode) error) (net.Listener, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, socketDirMode); err != nil {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	if err := directory(path); err != nil {
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
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return l, nil
}

// makePrivate changes the mode of a directory that was created for the socket, as
// kubelet creates a hostPath, to 0700. One with other files keeps its mode.
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

// checkDir returns an error if another user can create a socket in a directory.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("socket directory %s: must belong to uid %d, which the server runs as", dir, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("socket directory %s: mode %04o lets others write to it; use a directory with mode 0700", dir, mode)
	}
	return nil
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
		return fmt.Errorf("socket %s: another kind of file is at the path, and is not replaced (%s)", path, info.Mode())
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

func bind(path string) (net.Listener, error) {
	// bind(2) takes the file's mode from the socket: the umask is the whole process's.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlled := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), socketMode) })
		return errors.Join(controlled, err)
	}}
	of, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	return peerListener{of.(*net.UnixListener)}, nil
}

// peerListener has connections that know who is at their other end.
type peerListener struct{ *net.UnixListener }

func (l peerListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return withPeer(conn), nil
}
