package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Nest runs one operation in a worker of its own, for an operation that itself runs in
// a worker and needs a second process. The calling thread starts it: it lives in that
// thread's namespaces, but enters the mount namespace, unless that is nil. It is killed
// with the thread, unless it has decided otherwise (prctl(2), PR_SET_PDEATHSIG). There is
// no deadline: the caller's own ends both.
func Nest[Q, A any](namespace *os.File, op Op[Q, A], q Q) (a A, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The path of the program may lead nowhere in the thread's mount namespace.
	cfg := Config{Binary: "/proc/self/exe", Namespace: namespace, Env: os.Environ()}
	p, err := launch(cfg)
	if err != nil {
		return a, err
	}
	defer func() {
		_ = p.conn.Close()
		p.kill()
		_ = p.reap(time.Time{})
	}()
	ctx := context.Background()
	if err = p.greet(ctx, cfg); err == nil {
		a, _, err = ask(ctx, p, op, q)
	}
	if err != nil {
		return a, fmt.Errorf("%s: %w", op.name, err)
	}
	return a, nil
}

// WaitEnd returns when the server has closed the stream or has ended. A Parent operation
// asks it beside its work.
func WaitEnd() {
	for {
		fds := []unix.PollFd{{Fd: socketFD, Events: unix.POLLRDHUP}}
		if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
