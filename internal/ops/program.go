package ops

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// runProgram runs a program in a session and process group of its own, and kills that
// group when the program has ended, and at the deadline. The kernel kills the program
// when this process ends.
func runProgram(q facts.Program) (a facts.ProgramResult, err error) {
	if err := operation.KeepMemoryPrivate(); err != nil { // both are told secrets
		return a, err
	}
	_ = operation.KeepFilesPrivate() // the server may have inherited descriptors, and passed them on
	p, err := startProgram(q)
	if err != nil {
		return a, fmt.Errorf("start %s: %w", q.Path, err)
	}
	late := make(chan struct{})
	timer := time.AfterFunc(time.Until(q.Deadline), func() {
		p.killGroup()
		close(late)
	})
	// It is not reaped before its group was killed: until then the number is its own.
	_, err = retryEINTR(func() (int, error) { return 0, unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
	if !timer.Stop() {
		<-late
		a.Late = true
	}
	p.killGroup()
	if err != nil {
		return a, fmt.Errorf("wait for %s: %w", q.Path, err)
	}
	var status unix.WaitStatus
	if _, err = retryEINTR(func() (int, error) { return unix.Wait4(p.pid, &status, 0, nil) }); err != nil {
		return a, fmt.Errorf("wait for %s: %w", q.Path, err)
	}
	// What left the group may keep the outputs open for ever.
	if err := p.out.SetReadDeadline(time.Now().Add(lastOutput)); err != nil {
		return a, fmt.Errorf("read the output of %s: %w", q.Path, err)
	}
	out := <-p.output
	a.Code, a.Output, a.Cut = status.ExitStatus(), out.text, out.cut
	return a, nil
}

// lastOutput is how long the outputs are read after the program has ended.
const lastOutput = 100 * time.Millisecond

// program is one that runs.
type program struct {
	pid    int
	out    *os.File
	output chan kept
}

// killGroup kills the program, and what it started that is still in its group.
func (p *program) killGroup() { _ = unix.Kill(-p.pid, unix.SIGKILL) }

// kept is what is kept of its outputs.
type kept struct {
	text []byte
	cut  bool
}

func startProgram(q facts.Program) (*program, error) {
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	defer stdout.Close()
	attr := &syscall.ProcAttr{
		Dir: "/", Env: q.Env,
		Files: []uintptr{stdin.Fd(), stdout.Fd(), stdout.Fd()}, // Fd makes them block, as the program expects
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	p := &program{out: out, output: make(chan kept, 1)}
	start := func() { p.pid, _, err = syscall.StartProcess(q.Path, append([]string{q.Path}, q.Args...), attr) }
	if q.OnHost {
		start()
	} else {
		elsewhere(start)
	}
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	go func() {
		_, _ = in.Write(q.Stdin) // a program need not read it
		_ = in.Close()
	}()
	go func() {
		text, err := io.ReadAll(io.LimitReader(out, int64(q.Limit)))
		dropped := int64(0)
		if err == nil {
			dropped, err = io.Copy(io.Discard, out)
		}
		p.output <- kept{text, dropped > 0 || err != nil}
	}()
	return p, nil
}

// elsewhere runs start on a thread that has not entered the host's mount namespace, and
// keeps that thread: the kernel kills the program when the thread that started it ends.
func elsewhere(start func()) {
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		start()
		close(started)
		select {}
	}()
	<-started
}
