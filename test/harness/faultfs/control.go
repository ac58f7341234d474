package faultfs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Patience bounds waiting for the daemon, which answers orders at once.
var Patience = 60 * time.Second

// Fail answers requests of these kinds with an errno; no kind means All, here
// and below.
func (f *FS) Fail(errno syscall.Errno, kinds ...Kind) {
	f.t.Helper()
	f.set(fault{Errno: errno}, kinds)
}

// Delay answers requests of these kinds late, and those that wait already as
// well.
func (f *FS) Delay(d time.Duration, kinds ...Kind) {
	f.t.Helper()
	f.set(fault{Delay: d}, kinds)
}

// Hang reads requests of these kinds and does not answer them until something
// else is ordered for that kind. Who waits for one cannot be killed meanwhile.
func (f *FS) Hang(kinds ...Kind) {
	f.t.Helper()
	f.set(fault{Hang: true}, kinds)
}

// DropWrites takes what is written and forgets it.
func (f *FS) DropWrites() {
	f.t.Helper()
	f.set(fault{Drop: true}, []Kind{Write})
}

// Lift ends all faults of these kinds; who waits gets an answer.
func (f *FS) Lift(kinds ...Kind) {
	f.t.Helper()
	f.set(fault{}, kinds)
}

func (f *FS) set(what fault, kinds []Kind) {
	f.t.Helper()
	if len(kinds) == 0 {
		kinds = []Kind{All}
	}
	f.order(order{Kinds: kinds, Fault: what})
}

// Requests is the number of requests of a kind that the daemon has read so far.
func (f *FS) Requests(k Kind) int {
	f.t.Helper()
	return f.order(order{})[k]
}

// order has the daemon obey, and returns what it has counted.
func (f *FS) order(o order) counts {
	f.t.Helper()
	f.must(f.control.SetDeadline(time.Now().Add(Patience)))
	f.must(f.orders.Encode(o))
	var seen counts
	f.must(f.answers.Decode(&seen))
	return seen
}

// Stop stops the daemon (SIGSTOP): it reads no more requests, and takes no
// orders. Who waits for a request that it has not read can be killed.
func (f *FS) Stop() {
	f.t.Helper()
	f.must(f.daemon.Process.Signal(unix.SIGSTOP))
	f.eventually("the daemon stands still", func() bool { return Stopped(f.PID()) })
}

// Continue lets a stopped daemon go on.
func (f *FS) Continue() {
	f.t.Helper()
	f.must(f.daemon.Process.Signal(unix.SIGCONT))
}

// Kill ends the daemon, and with it the connection.
func (f *FS) Kill() {
	f.t.Helper()
	_ = f.daemon.Process.Kill() // it may have ended by itself
	<-f.ended
}

// HandOver starts a process that has the connection open, too, and does not serve it: as a
// supervisor that keeps the descriptor for the next daemon. It ends with the test.
func (f *FS) HandOver() *exec.Cmd {
	f.t.Helper()
	daemon, err := unix.PidfdOpen(f.PID(), 0)
	f.must(err)
	defer unix.Close(daemon)
	fd, err := unix.PidfdGetfd(daemon, fuseFD, 0)
	f.must(err)
	dev := os.NewFile(uintptr(fd), "/dev/fuse")
	defer dev.Close()
	keeper := exec.Command("sleep", "infinity")
	keeper.ExtraFiles = []*os.File{dev}
	keeper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	f.must(keeper.Start())
	f.t.Cleanup(func() { _ = keeper.Process.Kill(); _ = keeper.Wait() })
	return keeper
}

// Abort ends the connection, and the daemon, which may be stopped or hold a
// request, with it. Waiting requests fail.
func (f *FS) Abort() {
	f.t.Helper()
	f.must(os.WriteFile(filepath.Join(f.connection, "abort"), []byte("1"), 0))
	f.Kill()
}

// AwaitWaiting waits until at least n requests wait for an answer.
func (f *FS) AwaitWaiting(n int) {
	f.t.Helper()
	f.eventually("a process waits for an answer", func() bool { return f.Waiting() >= n })
}

// PID is the daemon.
func (f *FS) PID() int { return f.daemon.Process.Pid }

// Stopped reports whether every thread of a process has stopped. On a busy machine one that
// runs goes on for a moment after SIGSTOP.
func Stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		raw, readErr := os.ReadFile(thread)
		if state := raw[bytes.LastIndexByte(raw, ')')+1:]; readErr == nil && !bytes.HasPrefix(state, []byte(" T")) {
			return false
		}
	}
	return err == nil && len(threads) > 0
}

func (f *FS) eventually(what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("not seen in time: %s", what)
		}
	}
}
