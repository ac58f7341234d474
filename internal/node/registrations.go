package node

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// openRegistrations follows kubelet's directory of the sockets with which drivers register
// themselves (inotify(7)), which is on the node's own disk. The descriptor is not blocking; -1
// where there is none.
func openRegistrations(dir string) (int, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("registrations of drivers: %w", err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("registrations of drivers: %w", err)
	}
	return fd, nil
}

// readRegistrations returns the drivers that registered themselves since the last time. For
// what does not fit, epoll tells of the descriptor again.
func readRegistrations(fd int) map[SuperblockEvent]bool {
	registered := map[SuperblockEvent]bool{}
	buf := make([]byte, 8<<10)
	n, _ := unix.Read(fd, buf) //nolint:errcheck // then it told of nothing
	for rest := buf[:max(n, 0)]; len(rest) > 0; {
		// An event: wd, mask, cookie and length, 4 bytes each, then the padded name.
		length := binary.NativeEndian.Uint32(rest[12:])
		name, _, _ := bytes.Cut(rest[unix.SizeofInotifyEvent:][:length], []byte{0})
		if driver, is := strings.CutSuffix(string(name), layout.RegistrationSuffix); is {
			registered[SuperblockEvent{Driver: driver}] = true
		}
		rest = rest[unix.SizeofInotifyEvent+length:]
	}
	return registered
}
