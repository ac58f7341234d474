// Package integration breaks real volumes on a real kernel, asks a real
// node-healer to heal them through a real gRPC client, and looks at what is
// left. It needs root, loop devices, and the programs that `make deps` installs.
//
// The whole package runs in a private mount namespace, so that nothing it
// mounts is ever seen by the machine. Server and worker are built with the tag
// `faults`, with which a worker can be stopped at every instant of a step.
package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

// inside marks the process that runs in the private mount namespace.
const inside = "NODE_HEALER_TEST_INSIDE"

// bin is where the binaries under test are.
var bin string

func TestMain(m *testing.M) {
	switch {
	case os.Geteuid() != 0:
		os.Exit(m.Run()) // every test skips, or fails in CI
	case os.Getenv(inside) == "":
		os.Exit(enter())
	}
	dir, err := os.MkdirTemp("", "node-healer-bin-")
	if err == nil {
		bin = dir
		err = buildBinaries(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
		if left := leftovers(); left != "" && code == 0 {
			fmt.Fprintln(os.Stderr, "the tests left behind:", left)
			code = 1
		}
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
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
	devices, _ := exec.Command("losetup", "--list", "--noheadings", "--output", "BACK-FILE").Output()
	for _, image := range images {
		if strings.Contains(string(devices), image) {
			left = append(left, "a loop device on "+image)
		}
	}
	return strings.Join(left, "; ")
}

// buildBinaries builds the server with the race detector: the tests are its
// heaviest load.
func buildBinaries(dir string) error {
	for _, b := range []struct{ name, cgo, race string }{
		{"node-healer", "1", "-race=true"},
		{"node-healer-worker", "0", "-race=false"},
	} {
		cmd := exec.Command("go", "build", "-tags", "faults", b.race, "-buildvcs=false",
			"-o", filepath.Join(dir, b.name), "github.com/csi-addons/node-healer/cmd/"+b.name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+b.cgo)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", b.name, err, out)
		}
	}
	return nil
}

// needsRoot skips on a laptop and fails where skipping is not allowed.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root, and in CI a test that would skip fails")
	}
	t.Skip("needs root, for mounts and loop devices")
}

// needsKernel skips where this kernel cannot show what the test is about, and
// fails where skipping is not allowed.
func needsKernel(t *testing.T, can bool, what string) {
	t.Helper()
	switch {
	case can:
	case os.Getenv("CI") != "":
		t.Fatalf("this kernel does not show %s, and in CI a test that would skip fails", what)
	default:
		t.Skipf("this kernel does not show %s", what)
	}
}

// uniqueMountIDs is true where the mount table has ids that are never used
// again: without them a memory filesystem has no identity.
func uniqueMountIDs(t *testing.T) bool {
	t.Helper()
	ns, err := host.OpenNamespace("", nil)
	must(t, err)
	defer ns.Close()
	table, err := ns.Mounts()
	must(t, err)
	return len(table.Mounts()) > 0 && table.Mounts()[0].ID != 0
}

// run executes a program and fails the test when it fails.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
