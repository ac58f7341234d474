package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

// logDir has what the programs of the node log.
const logDir = "/var/log"

// start starts a program of the node until the test ends, or it is stopped.
func start(t testing.TB, name string, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	log, err := os.Create(filepath.Join(logDir, name+".log"))
	harness.Must(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	harness.Must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	stop = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// tail returns the end of a log.
func tail(path string) string {
	const most = 16 << 10
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-most):])
}

// patience bounds every wait.
const patience = 5 * time.Minute

// eventually waits for what a cluster does in its own time.
func eventually(t testing.TB, what string, ok func() error) {
	t.Helper()
	begin := time.Now()
	for err := ok(); err != nil; err = ok() {
		if time.Since(begin) > patience {
			t.Fatalf("not seen in time: %s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("after %.1f s: %s", time.Since(begin).Seconds(), what)
}

// run runs a command that does not take long, and returns its output.
func run(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return string(out), nil
}
