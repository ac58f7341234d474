package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
)

// Dial connects to a unix socket beneath kubelet's directory.
//
// The server does it itself. No step can hang on a volume: no mount and no symbolic
// link is on the way, kubelet's directory is on the node's own disk, and a non-blocking
// connect fails at once (EAGAIN) when the listener's backlog is full (unix(7)).
func (n *Node) Dial(ctx context.Context, socket string) (net.Conn, error) {
	name, beneath := strings.CutPrefix(n.RealPath(socket), n.kubelet.Root+"/")
	if !beneath {
		return nil, fmt.Errorf("%w: %s is not beneath %s", operation.ErrRefused, socket, n.kubelet.Root)
	}
	fd, err := openBeneath(n.cfg.KubeletRoot, name)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", socket, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("socket %s: %w", socket, cmp.Or[error](err, unix.ENOTSOCK))
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", socket, err)
	}
	return conn, nil
}

// openBeneath opens what has the name beneath a directory, as O_PATH, over no symbolic link
// and no mount: what is mounted there may be a volume, whose server never answers.
//
// A driver's pod that has its own directory mounted within kubelet's, and that one with
// Bidirectional propagation, makes of it a mount of the host. It lies on itself, so what is
// looked for is beneath it, too: there it is opened, in a clone of kubelet's mount alone.
func openBeneath(root, name string) (int, error) {
	dir, err := mount.Open(unix.AT_FDCWD, root, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	open := func(dir int) (int, error) {
		return mount.OpenOverNoLink(dir, name, unix.O_PATH, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV)
	}
	fd, err := open(dir)
	if !errors.Is(err, unix.EXDEV) {
		return fd, err
	}
	bare, cloneErr := mount.Clone(dir)
	if cloneErr != nil {
		return -1, errors.Join(err, cloneErr)
	}
	defer unix.Close(bare)
	if fd, beneath := open(bare); beneath == nil {
		return fd, nil
	}
	return -1, err
}

// PeerPID returns the process that listens at the other end of a unix socket
// (SO_PEERCRED, unix(7)); 0 for one that cannot be seen from here, and for other
// connections.
func PeerPID(conn net.Conn) int {
	socket, is := conn.(syscall.Conn)
	if !is {
		return 0
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
