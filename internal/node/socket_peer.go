package node

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

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
