package ops

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// probeInContainer probes one mount of a container. It brings a clone of it to the
// host's namespace first: a thread that waits for a filesystem inside of a container
// keeps all of that container's mounts, of other volumes too, for as long as that lasts.
func probeInContainer(t facts.ContainerMount) (facts.ContainerProbe, error) {
	clone, err := cloneFromContainer(t)
	if err != nil {
		return failed(err), nil
	}
	defer unix.Close(clone)
	errno := answers(clone)
	if errno == unix.ESTALE { // it counts when a second probe gives it too
		errno = answers(clone)
	}
	return facts.ContainerProbe{Errno: errno}, nil
}

// cloneFromContainer clones a mount of a container, and comes back.
func cloneFromContainer(t facts.ContainerMount) (int, error) {
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return -1, err
	}
	defer home.Close()
	in, err := openContainer(t)
	if err != nil {
		return -1, err
	}
	defer in.close()
	if err := in.enter(); err != nil {
		return -1, err
	}
	clone, fd, err := in.cloneTop(t)
	if err == nil {
		_ = unix.Close(fd)
	}
	if back := operation.EnterMounts(home); back != nil {
		err = fmt.Errorf("come back: %w", back)
	}
	return clone, err
}
