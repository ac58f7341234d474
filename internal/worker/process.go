package worker

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
)

// process is the server's side of one worker.
type process struct {
	conn net.Conn
	out  *bufio.Writer
	enc  *gob.Encoder
	dec  *gob.Decoder
	pid  int
	// op is the last operation it was asked for.
	op string
	// fd is that of conn, for as long as conn is open.
	fd int32
	// pidfd is pollable, so that waiting for the end of a worker costs no
	// thread, even if that takes forever.
	pidfd *os.File
}

// launch starts a worker. It must be called on a thread that lives as long as
// the server: the kernel kills the worker when the thread that forked it ends.
func launch(cfg Config) (*process, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "worker"), os.NewFile(uintptr(pair[1]), "server")
	defer ours.Close()
	defer theirs.Close()
	// Opened here and not inherited: a daemon's standard input may be anything.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()

	files := []uintptr{null.Fd(), null.Fd(), os.Stderr.Fd(), theirs.Fd()}
	if cfg.Namespace != nil {
		files = append(files, cfg.Namespace.Fd())
	}
	pidfd := -1
	pid, _, err := syscall.StartProcess(cfg.Binary, append([]string{cfg.Binary}, cfg.Args...), &syscall.ProcAttr{
		Dir:   "/",
		Env:   cfg.Env,
		Files: files,
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true, PidFD: &pidfd},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Binary, err)
	}
	var conn net.Conn
	if err = unix.SetNonblock(pidfd, true); err == nil {
		conn, err = net.FileConn(ours)
	}
	if err != nil {
		// It has done nothing yet, so it ends at once.
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, waitErr := syscall.Wait4(pid, nil, 0, nil)
		_ = unix.Close(pidfd)
		return nil, fmt.Errorf("begin to talk to a worker (Linux 5.4 or newer is needed): %w", errors.Join(err, waitErr))
	}
	p := &process{pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), conn: conn, out: bufio.NewWriter(conn)}
	p.enc, p.dec = gob.NewEncoder(p.out), gob.NewDecoder(bufio.NewReader(conn))
	if raw, err := conn.(*net.UnixConn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { p.fd = int32(fd) })
	}
	return p, nil
}

// greet tells a new worker whether to enter a mount namespace, and waits until it has.
func (p *process) greet(ctx context.Context, cfg Config) error {
	_ = p.conn.SetDeadline(time.Time{})
	stop := p.bound(ctx)
	defer stop()
	var h operation.Head
	err := errors.Join(p.enc.Encode(operation.Greeting{Namespace: cfg.Namespace != nil}), p.out.Flush())
	if err == nil {
		err = p.dec.Decode(&h)
	}
	if err != nil {
		return streamError(err)
	}
	if h.Err != nil {
		return h.Err
	}
	return nil
}

// promptTime is how long a caller waits for an answer on its own thread. Most
// answers are there by then, and to wait through the runtime's poller costs as
// much as the worker's whole work.
const promptTime = 200 * time.Microsecond

// answered waits for the answer to begin, for a moment.
func (p *process) answered() bool {
	wait := unix.NsecToTimespec(int64(promptTime))
	poll := []unix.PollFd{{Fd: p.fd, Events: unix.POLLIN}}
	n, err := unix.Ppoll(poll, &wait, nil)
	return err == nil && n == 1
}

// bound makes reads and writes fail when ctx ends.
func (p *process) bound(ctx context.Context) (stop func()) {
	done := make(chan struct{})
	after := context.AfterFunc(ctx, func() {
		_ = p.conn.SetDeadline(time.Unix(1, 0))
		close(done)
	})
	return func() {
		if !after() {
			<-done // or it would interrupt the next call
		}
	}
}

// ask sends one request and waits for its answer. broken is true when the
// stream can no longer be used.
func ask[Q, A any](ctx context.Context, p *process, op operation.Op[Q, A], q Q) (a A, broken bool, err error) {
	deadline, _ := ctx.Deadline()
	if err := p.conn.SetDeadline(deadline); err != nil {
		return a, true, streamError(err)
	}
	var h operation.Head
	err = errors.Join(p.enc.Encode(operation.Head{Op: op.Name()}), p.enc.Encode(q), p.out.Flush())
	if err == nil && !p.answered() {
		defer p.bound(ctx)() // the caller may give up before its deadline
	}
	if err == nil {
		err = p.dec.Decode(&h)
	}
	if err == nil {
		err = p.dec.Decode(&a)
	}
	if err != nil {
		return a, true, streamError(err)
	}
	if h.Err != nil {
		return a, false, h.Err
	}
	return a, false, nil
}

// streamError tells a deadline from a dead process.
func streamError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrTimeout
	}
	return fmt.Errorf("%w (%v)", ErrLost, err) //nolint:errorlint // an io error of ours is no leaf of the operation's
}

// kill asks the kernel to end the process; reap tells whether it did.
func (p *process) kill() {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return
	}
	// Not through Fd(), which would make the pidfd blocking. An error means
	// that the process has ended, or that reap is going to report it as stuck.
	_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

// ended reports whether the process died while it was idle, as by the OOM killer.
func (p *process) ended() bool {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return true
	}
	var info unix.Siginfo
	var waitErr error
	err = raw.Control(func(fd uintptr) {
		waitErr = unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	})
	return err != nil || errors.Is(waitErr, unix.ECHILD) || (waitErr == nil && info.Signo != 0)
}

// reap waits for the process to end, until the deadline; the zero time means
// forever. It holds no thread while it waits.
func (p *process) reap(deadline time.Time) error {
	if err := p.pidfd.SetReadDeadline(deadline); err != nil {
		return err
	}
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var waitErr error
	err = raw.Read(func(fd uintptr) bool {
		var info unix.Siginfo
		waitErr = unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG, nil)
		if errors.Is(waitErr, unix.EAGAIN) || errors.Is(waitErr, unix.EINTR) {
			return false
		}
		// With WNOHANG a process that still runs leaves the signal number 0.
		return waitErr != nil || info.Signo != 0
	})
	if err != nil {
		return err
	}
	_ = p.pidfd.Close()
	if errors.Is(waitErr, unix.ECHILD) {
		return nil // it has ended, and a driver that the pool is part of reaps all of its children
	}
	return waitErr
}
