// Package harness gives tests and benchmarks a node of their own: a kubelet root
// in a private mount namespace, real volumes on it, real containers, and a real
// node-healer that is asked through a real gRPC client. It needs root, loop
// devices, and the programs that `make deps` installs.
//
// It is for what has to be seen on a real kernel. What can be shown with plain
// values belongs into a test beside the code.
package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// inside marks the process that runs in the private mount namespace.
const inside = "NODE_HEALER_TEST_INSIDE"

// Main runs the tests of a package in a mount namespace of their own, so that
// nothing they mount is ever seen by the machine, with the binaries that they
// ask for, and fails when they leave anything behind. A TestMain calls it; it
// does not return.
func Main(m *testing.M, build Build) {
	faultfs.Main()
	switch {
	case os.Geteuid() != 0:
		os.Exit(m.Run()) // every test skips, or fails in CI
	case os.Getenv(inside) == "":
		os.Exit(enter())
	}
	os.Exit(runInside(m, build))
}

// enter runs this test binary again in a mount namespace of its own.
func enter() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
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

func runInside(m *testing.M, build Build) int {
	dir, err := os.MkdirTemp("", "node-healer-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := build.into(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if left := leftovers(); left != "" && code == 0 {
		fmt.Fprintln(os.Stderr, "the tests left behind:", left)
		return 1
	}
	return code
}

// images lists the backing files of all loop devices that the tests made.
var images []string

// leftovers names processes, mounts and loop devices that outlived the tests.
func leftovers() string {
	var left []string
	children, _ := filepath.Glob("/proc/self/task/*/children")
	for _, c := range children {
		if raw, _ := os.ReadFile(c); len(raw) > 0 {
			left = append(left, "processes "+string(raw))
		}
	}
	if table, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(table), "/kubelet") {
		left = append(left, "mounts")
	}
	// From sysfs: losetup(8) asks the filesystems of the backing files.
	devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, d := range devices {
		backing, _ := os.ReadFile(d)
		for _, image := range images {
			if strings.HasPrefix(string(backing), image) {
				left = append(left, "a loop device on "+image)
			}
		}
	}
	return strings.Join(left, "; ")
}
