package faultfs

import "os/exec"

// Asker is a process that asks the filesystem something, as an application does,
// and waits for the answer.
type Asker struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error
}

// Ask starts a process that asks with statfs(2).
func (f *FS) Ask() *Asker {
	f.t.Helper()
	a := &Asker{cmd: exec.Command("stat", "--file-system", f.dir), ended: make(chan struct{})}
	f.must(a.cmd.Start())
	f.askers = append(f.askers, a)
	go func() {
		defer close(a.ended)
		a.err = a.cmd.Wait()
	}()
	return a
}

// PID is the process.
func (a *Asker) PID() int { return a.cmd.Process.Pid }

// Kill sends the process SIGKILL, of which it may not end.
func (a *Asker) Kill() { _ = a.cmd.Process.Kill() }

// Wait waits for the process to end: with nil when it got its answer.
func (a *Asker) Wait() error {
	<-a.ended
	return a.err
}
