package ops

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// init keeps the main thread for the main goroutine: /proc/self is the main thread, and
// operations leave threads in other mount namespaces.
func init() { runtime.LockOSThread() }

// TestMain runs the tests of root in a mount namespace of their own: an
// operation that should have refused must not reach the machine.
func TestMain(m *testing.M) {
	const inContainer = "NODE_HEALER_TEST_INSIDE"
	if os.Geteuid() != 0 || os.Getenv(inContainer) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inContainer+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		panic(err)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}
