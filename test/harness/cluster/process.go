package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// process is one program of the control plane.
type process struct {
	cmd     *exec.Cmd
	logFile string
	// ended is closed when it has, and err says how.
	ended chan struct{}
	err   error
}

// run starts a program that dies with this process.
func (c *Cluster) run(name string, args ...string) (*process, error) {
	p := &process{
		cmd:     exec.Command(filepath.Join(c.programs, name), args...),
		logFile: filepath.Join(c.dir, name+".log"),
		ended:   make(chan struct{}),
	}
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = c.dir, log, log
	// Memory for processor time: an API's start is in good part garbage collection.
	p.cmd.Env = append(os.Environ(), "GOGC=200")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.keeper.do(p.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// kill ends it at once: nothing that it holds is worth a goodbye.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// log returns the end of what it logged.
func (p *process) log() string {
	raw, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-4096):])
}

// keeper starts processes from one thread that lives as long as they do. The
// kernel sends a parent's death signal when the thread ends that forked, and a
// test may end any thread by leaving it locked (see runtime.LockOSThread).
type keeper chan func()

func newKeeper() keeper {
	k := make(keeper)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for job := range k {
			job()
		}
	}()
	return k
}

func (k keeper) do(start func() error) error {
	done := make(chan error)
	k <- func() { done <- start() }
	return <-done
}

func (k keeper) close() { close(k) }
