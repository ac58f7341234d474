package workerops

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ProbeInContainerAnswer says what a touch of a container's mount gave.
type ProbeInContainerAnswer struct {
	Errno syscall.Errno
	// Err says why it was not touched, Ended that the container is gone.
	Err   string
	Ended bool
}

// peek touches one mount of a container. It brings a clone of it home first: who
// waits for a filesystem inside of a container keeps all of that container's
// mounts, of other volumes too, for as long as that lasts.
func probeInContainer(t InContainerTarget) (ProbeInContainerAnswer, error) {
	clone, err := bringOut(t)
	if err != nil {
		r := InContainerResult{}
		r.fail(err)
		return ProbeInContainerAnswer{Err: r.Err, Ended: r.Ended}, nil
	}
	defer unix.Close(clone)
	pause("peek/home")
	errno := answers(clone)
	if errno == unix.ESTALE { // it counts when a second touch gives it too
		errno = answers(clone)
	}
	return ProbeInContainerAnswer{Errno: errno}, nil
}

// bringOut clones a mount of a container, and comes back.
func bringOut(t InContainerTarget) (int, error) {
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return -1, err
	}
	defer home.Close()
	r, err := openRoom(t)
	if err != nil {
		return -1, err
	}
	defer r.close()
	if err := r.enter(); err != nil {
		return -1, err
	}
	clone, fd, err := r.cloneTop(t)
	if err == nil {
		_ = unix.Close(fd)
	}
	if back := enter(home); back != nil {
		err = fmt.Errorf("come back: %w", back)
	}
	return clone, err
}
