package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/ops"
)

// TestMain makes the test binary its own worker, and runs the tests of root in a
// mount namespace of their own: what they mount does not reach the machine, and
// what the machine mounts does not reach them.
func TestMain(m *testing.M) {
	const inContainer = "HOST_TEST_INSIDE"
	switch {
	case os.Getenv("HOST_TEST_SERVES") != "":
		if err := operation.Serve(ops.Ops()...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case os.Geteuid() != 0 || os.Getenv(inContainer) != "":
		os.Exit(m.Run())
	default:
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
}
