// Package harness gives tests and benchmarks a node of their own: a kubelet root
// in private mount and PID namespaces, real volumes on it, real containers, and a real
// node-healer that is asked through a real gRPC client. It needs root, loop
// devices, and the programs that `make deps` installs.
//
// It is for what has to be seen on a real kernel. What can be shown with plain
// values belongs into a test beside the code.
package harness

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
	"github.com/csi-addons/node-healer/test/harness/diskfs"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// A test binary runs three times, one within the other: on the machine, as process 1 of
// namespaces of its own, and as the tests.
const (
	levelEnv = "NODE_HEALER_TEST_LEVEL"
	atInit   = "init"
	atTests  = "tests"
)

// Main runs the tests of a package in a mount and a PID namespace of their own, so that
// nothing they mount is seen by the machine, and no process of the machine by them. They
// have the binaries that they ask for, and fail when they leave anything behind. What the
// tests share is ended by stop, before that is checked. A TestMain calls it; it does not
// return.
func Main(m *testing.M, build Build, stop ...func()) { MainInLanes(m, build, nil, stop...) }

// MainInLanes is Main for many tests that wait a lot: a few run at the same time, each
// lane of them in namespaces of its own. Tests that use what the whole machine shares
// are named in alone: each runs after all others, and beside none.
func MainInLanes(m *testing.M, build Build, alone []string, stop ...func()) {
	faultfs.Main()
	csidriver.Main()
	diskfs.Main()
	// k8s.io/mount-utils, with which tests unpublish, logs each target that a driver had
	// removed already: dozens of lines, in which the names of failed tests drown.
	klog.SetLogger(klog.Logger{})
	flag.Parse()
	bin = os.Getenv(prebuilt)
	if daemon := filepath.Join(bin, fuseDaemon); bin != "" {
		faultfs.Program = daemon
	}
	if os.Getenv(levelEnv) != "" {
		setSlow(measureSlow())
	}
	switch level := os.Getenv(levelEnv); {
	case os.Geteuid() != 0 || flag.Lookup("test.list").Value.String() != "":
		os.Exit(run(m, stop)) // what needs root skips, or fails in CI
	case level == "":
		os.Exit(onMachine(build, alone))
	case level == atInit:
		os.Exit(asInit())
	}
	os.Exit(asTests(m, stop))
}

// onMachine builds the binaries under test and runs the tests.
func onMachine(build Build, alone []string) int {
	dir := os.Getenv(sharedBuilds)
	if dir == "" || build != Faults {
		var err error
		if dir, err = os.MkdirTemp(os.Getenv("TEST_SCRATCH"), "node-healer-bin-"); err != nil { // see .ci/integration
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	if err := build.into(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	switch build { // what is measured has the timeouts that it is shipped with
	case Faults:
		slow = measureSlow()
		if alone != nil && lanes() > 1 { // each lane slows the others down
			slow = max(slow, 2)
		}
	case Nothing: // there are no timeouts of a server, only those of the tests
		slow = maxSlow
	}
	defer removeCgroups("burstable", ".")
	return runLanes(alone)
}

// again is this test binary at another level. It is killed with this process.
func again(level string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), levelEnv+"="+level, prebuilt+"="+bin, fmt.Sprintf("%s=%g", slowEnv, slow))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// asInit makes the new namespaces usable, runs the tests in them, and reaps the processes
// whose parents have ended. What is left then the kernel ends with this process: not a
// filesystem that the tests froze, which outlives its mounts and keeps its loop device.
func asInit() int {
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, unix.SIGTERM, unix.SIGINT, unix.SIGHUP) // see lane
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
	); err != nil {
		fmt.Fprintln(os.Stderr, "make namespaces for the tests:", err)
		return 1
	}
	tests := again(atTests)
	if err := tests.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		<-stopped
		_ = unix.Kill(-1, unix.SIGKILL) // all but this process
	}()
	var status unix.WaitStatus
	for {
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			fmt.Fprintln(os.Stderr, "wait for the tests:", err)
			return 1
		}
		if pid == tests.Process.Pid {
			break
		}
	}
	thaw() // before anything is printed: who reads that may be gone
	if left := orphans(); left != "" {
		fmt.Fprintln(os.Stderr, "the tests left processes behind:", left)
		return 1
	}
	if !status.Exited() {
		fmt.Fprintln(os.Stderr, "the tests ended by", status.Signal())
		return 1
	}
	return status.ExitStatus()
}

// thaw thaws the filesystems on the tests' loop devices that they left frozen.
func thaw() {
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return
	}
	defer table.Close()
	mounts, _ := mount.Parse(table)
	for _, m := range mounts {
		if !strings.HasPrefix(m.Source, "/dev/loop") || !strings.HasPrefix(m.Path, filepath.Join(os.TempDir(), "Test")) {
			continue // what is the machine's may be frozen by somebody else
		}
		if dir, err := os.Open(m.Path); err == nil {
			_ = unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0) // an error: it is not frozen
			_ = dir.Close()
		}
	}
}

// orphans names the processes that do not end: the test process itself has ended by
// now, and this is the parent of all that are left.
func orphans() string {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
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

// asTests runs the tests, in the namespaces that are theirs.
func asTests(m *testing.M, stop []func()) int {
	code := run(m, stop)
	if left := leftovers(); left != "" && code == 0 {
		fmt.Fprintln(os.Stderr, "the tests left behind:", left)
		return 1
	}
	return code
}

// run runs the tests, and ends what they shared.
func run(m *testing.M, stop []func()) int {
	code := runQueued(m)
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
	for _, image := range images {
		if len(devicesOn(image)) > 0 {
			left = append(left, "a loop device on "+image)
		}
	}
	return strings.Join(left, "; ")
}

// devicesOn returns the loop devices on an image. From sysfs: losetup(8) asks the filesystems
// of the backing files.
func devicesOn(image string) []string {
	devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	return slices.DeleteFunc(devices, func(d string) bool {
		backing, _ := os.ReadFile(d)
		return !strings.HasPrefix(string(backing), image)
	})
}
