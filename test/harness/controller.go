package harness

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Controller is a node-healer-controller, in a process of its own.
type Controller struct {
	T testing.TB
	// Log has what it logged.
	Log LogFile
	// Metrics is where it serves /metrics.
	Metrics string

	health string
	cmd    *exec.Cmd
}

// StartController starts one and waits until it is ready, which a standby is, too. The
// test's end stops it.
func StartController(tb testing.TB, args ...string) *Controller {
	tb.Helper()
	return StartControllerAs(tb, ControllerProgram(tb), args...)
}

// StartControllerAs starts one of a program that runs it.
func StartControllerAs(tb testing.TB, program string, args ...string) *Controller {
	tb.Helper()
	c := &Controller{T: tb, Log: LogFile(filepath.Join(tb.TempDir(), "controller.log")), Metrics: freeAddress(tb), health: freeAddress(tb)}
	log, err := os.OpenFile(string(c.Log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	Must(tb, err)
	defer log.Close()
	c.cmd = exec.Command(program, append([]string{"--health-address=" + c.health, "--metrics-address=" + c.Metrics, "-v=2"}, args...)...)
	c.cmd.Stderr = log
	Must(tb, c.cmd.Start())
	tb.Cleanup(c.Stop)
	Eventually(tb, "the controller is ready", func() bool {
		answer, err := http.Get("http://" + c.health + "/readyz")
		if err == nil {
			_ = answer.Body.Close()
		}
		return err == nil && answer.StatusCode == http.StatusOK
	})
	return c
}

// Kill ends it at once.
func (c *Controller) Kill() {
	c.T.Helper()
	Must(c.T, c.cmd.Process.Kill())
	_ = c.cmd.Wait()
	c.cmd = nil
}

// Stop ends it gently, if it runs, and fails the test when it does not end well.
func (c *Controller) Stop() {
	c.T.Helper()
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(Patience, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	if err := c.cmd.Wait(); err != nil {
		c.T.Errorf("the controller ended with %v\n%s", err, c.Log)
	}
	c.cmd = nil
}

// ControllerProgram is the path of the controller as it is deployed; it is built only for
// the tests that need it.
func ControllerProgram(tb testing.TB) string {
	tb.Helper()
	path, err := buildOnce("node-healer-controller", func(to string) error {
		return buildAs(to, "node-healer-controller", false, released)
	})
	Must(tb, err)
	return path
}
