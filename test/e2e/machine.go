package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// The test binary runs three times, one within the other: on the machine, as
// process 1 of the node, and as the tests.
const (
	levelEnv  = "NODE_HEALER_E2E"
	atInit    = "init"
	atTests   = "tests"
	cgroupEnv = "NODE_HEALER_E2E_CGROUP"
)

// Main runs the tests of a package on a node of their own. What the tests share
// is ended by stop. A TestMain calls it; it does not return.
func Main(m *testing.M, stop func()) {
	csidriver.Main()
	harness.Patience = patience
	switch level := os.Getenv(levelEnv); {
	case os.Geteuid() != 0:
		os.Exit(m.Run()) // what needs root skips, or fails in CI
	case level == "":
		os.Exit(onMachine())
	case level == atInit:
		os.Exit(asInit())
	}
	code := m.Run()
	stop()
	os.Exit(code)
}

// onMachine starts the node and removes what of it is seen outside. The kernel
// ends all processes of the node, and with them its mounts and its network, when
// its process 1 ends, and that one ends with this.
func onMachine() int {
	// The node has to end before this process.
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer cancel()
	cgroup, err := makeCgroup(fmt.Sprintf("/node-healer-e2e-%d", os.Getpid()))
	defer removeCgroup(cgroup)
	if err != nil {
		fmt.Fprintln(os.Stderr, "make the node's cgroup:", err)
		return 1
	}
	cmd := again(ctx, atInit)
	cmd.Env = append(cmd.Env, cgroupEnv+"="+cgroup)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	return exitCode(cmd.Run())
}

// asInit is process 1 of the node: it sets the node up, starts the tests and
// reaps orphans until they have ended.
func asInit() int {
	if err := setUpNode(); err != nil {
		fmt.Fprintln(os.Stderr, "set up the node:", err)
		return 1
	}
	tests := again(context.Background(), atTests)
	tests.Env = append(tests.Env, "TMPDIR="+tmpDir, "TEST_SCRATCH=")
	if err := tests.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "wait for the tests:", err)
			return 1
		case pid == tests.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == tests.Process.Pid:
			return 1
		}
	}
}

// again is this program, with the same arguments, one level further in.
func again(ctx context.Context, level string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), levelEnv+"="+level)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	default:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
}
