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
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/test/harness/csidriver"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// insideEnv marks the process that runs in the private mount namespace.
const insideEnv = "NODE_HEALER_TEST_INSIDE"

// Main runs the tests of a package in a mount namespace of its own, so that
// nothing they mount is ever seen by the machine, with the binaries that they
// ask for, and fails when they leave anything behind. What the tests share is
// ended by stop, before that is checked. A TestMain calls it; it does not
// return.
func Main(m *testing.M, build Build, stop ...func()) {
	faultfs.Main()
	csidriver.Main()
	fuseDaemonMain()
	// k8s.io/mount-utils, with which tests unpublish, logs each target that a driver had
	// removed already: dozens of lines, in which the names of failed tests drown.
	klog.SetLogger(klog.Logger{})
	switch {
	case os.Geteuid() != 0:
		os.Exit(run(m, stop)) // what needs root skips, or fails in CI
	case os.Getenv(insideEnv) == "":
		os.Exit(enter())
	}
	os.Exit(runInNode(m, build, stop))
}

// enter runs this test binary again in a mount namespace of its own.
func enter() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// Orphans in there become children of this process.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	err := cmd.Run()
	left := orphans()
	if left != "" {
		fmt.Fprintln(os.Stderr, "the tests left processes behind:", left)
	}
	var exit *exec.ExitError
	switch {
	case err == nil && left != "":
		return 1
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	default:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
}

// orphans names the children of this process that do not end: the test process
// itself has ended by now.
func orphans() string {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		for ; err == nil && pid > 0; pid, err = unix.Wait4(-1, nil, unix.WNOHANG, nil) { //nolint:revive // only counts
		}
		if errors.Is(err, unix.ECHILD) {
			return ""
		}
		if time.Now().After(deadline) {
			break
		}
	}
	var names []string
	children, _ := filepath.Glob("/proc/self/task/*/children")
	for _, c := range children {
		raw, _ := os.ReadFile(c)
		for _, pid := range strings.Fields(string(raw)) {
			command, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
			names = append(names, pid+" "+strings.TrimSpace(string(command)))
		}
	}
	return strings.Join(names, ", ")
}

func runInNode(m *testing.M, build Build, stop []func()) int {
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
	code := run(m, stop)
	if left := leftovers(); left != "" && code == 0 {
		fmt.Fprintln(os.Stderr, "the tests left behind:", left)
		return 1
	}
	return code
}

// run runs the tests, and ends what they shared.
func run(m *testing.M, stop []func()) int {
	code := m.Run()
	for _, end := range stop {
		end()
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
