package workerops

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// ProgramQuery is one run of a program.
type ProgramQuery struct {
	// Path is the program, Args its arguments without its own name, Env its whole
	// environment. Everyone on the node can read them.
	Path string
	Args []string
	Env  []string
	// OnHost runs it in the worker's mount namespace, instead of the one that the worker
	// was started in.
	OnHost bool
	Stdin  []byte
	// Limit is how many bytes of both outputs together are kept.
	Limit int
	// Cgroup is the directory that runProgram made for it; empty without one.
	Cgroup string
}

// ProgramAnswer is what a program left when it and all that it started had ended.
type ProgramAnswer struct {
	// Code is its exit code, -1 if a signal ended it.
	Code   int
	Output []byte
	// Cut is true if it wrote more than that.
	Cut     bool
	Elapsed time.Duration
}

// runProgram has a second process run the program, so that no single death lets
// something act on: the one that is left ends what the program started. Both end it as
// well when the server ends, or closes the stream at the deadline.
func runProgram(q ProgramQuery) (a ProgramAnswer, err error) {
	f := newFamily()
	defer f.end()
	q.Cgroup = f.cgroup
	if err := f.adopt(); err != nil {
		return a, err
	}
	ours, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return a, fmt.Errorf("our mount namespace: %w", err)
	}
	defer ours.Close()
	done := make(chan struct{})
	go func() { // on a thread that is still where the worker was started
		defer close(done)
		a, err = worker.Nest(ours, superviseProgram, q)
	}()
	<-done
	return a, err
}

// superviseProgram is what the second process does.
var superviseProgram = worker.Define("supervise-program", worker.Parent, supervise)

func supervise(q ProgramQuery) (a ProgramAnswer, err error) {
	// When the first process is gone this one has work to do.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return a, fmt.Errorf("prctl(PR_SET_PDEATHSIG): %w", err)
	}
	// It may be given secrets. A limit of one byte also keeps the core from a program in
	// core_pattern (core(5), do_coredump in the kernel).
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return a, fmt.Errorf("setrlimit(RLIMIT_CORE): %w", err)
	}
	// The server may have inherited descriptors, and passed them on (Linux 5.11).
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	f := &family{cgroup: q.Cgroup}
	if err := f.adopt(); err != nil {
		return a, err
	}
	defer f.end()
	began := time.Now()
	p, err := startProgram(q)
	if err != nil {
		return a, fmt.Errorf("start %s: %w", q.Path, err)
	}
	var status unix.WaitStatus
	_, err = retryEINTR(func() (int, error) { return unix.Wait4(p.pid, &status, 0, nil) })
	a.Elapsed = time.Since(began)
	if err != nil {
		return a, fmt.Errorf("wait for %s: %w", q.Path, err)
	}
	f.end() // or the outputs stay open
	out := <-p.output
	a.Code, a.Output, a.Cut = status.ExitStatus(), out.text, out.cut
	return a, nil
}

// program is one that runs.
type program struct {
	pid    int
	output chan kept
}

// kept is what is kept of its outputs.
type kept struct {
	text []byte
	cut  bool
}

func startProgram(q ProgramQuery) (*program, error) {
	in, out, err := pipes()
	if err != nil {
		return nil, err
	}
	defer in.theirs.Close()
	defer out.theirs.Close()
	attr := &syscall.ProcAttr{
		Dir: "/", Env: q.Env,
		Files: []uintptr{in.theirs.Fd(), out.theirs.Fd(), out.theirs.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	if q.Cgroup != "" {
		dir, err := os.Open(q.Cgroup)
		if err != nil {
			return nil, fmt.Errorf("its cgroup: %w", err)
		}
		defer dir.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
	}
	p := &program{output: make(chan kept, 1)}
	start := func() { p.pid, _, err = syscall.StartProcess(q.Path, append([]string{q.Path}, q.Args...), attr) }
	if q.OnHost {
		start()
	} else {
		elsewhere(start)
	}
	if err != nil {
		return nil, errors.Join(err, in.ours.Close(), out.ours.Close())
	}
	go func() {
		_, _ = in.ours.Write(q.Stdin) // a program need not read it
		_ = in.ours.Close()
	}()
	go func() {
		text, _ := io.ReadAll(io.LimitReader(out.ours, int64(q.Limit)))
		dropped, _ := io.Copy(io.Discard, out.ours)
		_ = out.ours.Close()
		p.output <- kept{text, dropped > 0}
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

// pipe has blocking ends: a program expects its own to be.
type pipe struct{ ours, theirs *os.File }

// pipes returns those for the program's input and for its outputs.
func pipes() (in, out pipe, _ error) {
	var read, write [2]int
	if err := unix.Pipe2(read[:], unix.O_CLOEXEC); err != nil {
		return in, out, fmt.Errorf("pipe: %w", err)
	}
	in = pipe{ours: os.NewFile(uintptr(read[1]), "input"), theirs: os.NewFile(uintptr(read[0]), "input")}
	if err := unix.Pipe2(write[:], unix.O_CLOEXEC); err != nil {
		return in, out, errors.Join(fmt.Errorf("pipe: %w", err), in.ours.Close(), in.theirs.Close())
	}
	out = pipe{ours: os.NewFile(uintptr(write[0]), "output"), theirs: os.NewFile(uintptr(write[1]), "output")}
	return in, out, nil
}
