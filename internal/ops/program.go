package ops

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// lastOutput is how long the outputs are read after the program has ended, by a worker that a busy node may
// not schedule for a second. What left its group may keep them open for ever: past the program's deadline
// they are read no longer than leastOutput, or the worker's own end would come first, and with it no answer.
const (
	lastOutput  = 2 * time.Second
	leastOutput = 100 * time.Millisecond
	maxOutput   = 4 << 10 // bytes of both outputs together that are kept
)

// runProgram runs a program in a session and process group of its own, and kills that
// group when the program has ended, and at the deadline. The kernel kills the program
// when this process ends.
func runProgram(q facts.Program) (a facts.ProgramResult, err error) {
	if err := operation.KeepMemoryPrivate(); err != nil { // both are told secrets
		return a, err
	}
	out := &firstOutput{}
	program := &exec.Cmd{
		Path: q.Path, Args: slices.Concat([]string{q.Path}, q.Args), Dir: "/",
		Env:   append([]string{}, q.Env...), // not nil, which is this process's own
		Stdin: bytes.NewReader(q.Stdin), Stdout: out, Stderr: out,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	if q.OnHost {
		err = program.Start()
	} else {
		// On a thread that has not entered the host's mount namespace, and that stays: the kernel kills
		// the program when the thread that started it ends.
		started := make(chan error)
		go func() {
			runtime.LockOSThread()
			started <- program.Start()
			select {}
		}()
		err = <-started
	}
	if err != nil {
		return a, fmt.Errorf("start %s: %w", q.Path, err)
	}
	// The program, and what it started that is still in its group.
	killGroup := func() { _ = unix.Kill(-program.Process.Pid, unix.SIGKILL) }
	late := make(chan struct{})
	timer := time.AfterFunc(time.Until(q.Deadline), func() {
		killGroup()
		close(late)
	})
	// It is not reaped before its group was killed: until then the number is its own.
	_, err = mount.RetryEINTR(func() (int, error) {
		return 0, unix.Waitid(unix.P_PID, program.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	})
	if !timer.Stop() {
		<-late
		a.Late = true
	}
	killGroup()
	if err != nil {
		return a, fmt.Errorf("wait for %s: %w", q.Path, err)
	}
	program.WaitDelay = min(lastOutput, max(leastOutput, time.Until(q.Deadline)))
	err = program.Wait()
	if program.ProcessState == nil {
		return a, fmt.Errorf("wait for %s: %w", q.Path, err)
	}
	a.Code, a.Output, a.Cut = program.ProcessState.ExitCode(), out.text, out.cut || errors.Is(err, exec.ErrWaitDelay)
	return a, nil
}

// firstOutput keeps the first bytes that a program writes.
type firstOutput struct {
	text []byte
	cut  bool
}

func (o *firstOutput) Write(text []byte) (int, error) {
	kept := text[:min(len(text), maxOutput-len(o.text))]
	o.text, o.cut = append(o.text, kept...), o.cut || len(kept) < len(text)
	return len(text), nil
}
