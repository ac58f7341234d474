package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/node"
)

// NeedsRoot skips on a laptop and fails where skipping is not allowed.
func NeedsRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root, and in CI a test that would skip fails")
	}
	t.Skip("needs root, for mounts and loop devices")
}

// vm is the environment variable with the kernel of a virtual machine that
// test/kernels runs the tests on. Empty: they run on the machine itself.
const vm = "NODE_HEALER_TEST_VM"

// NeedsHost skips in a virtual machine, which has no more than the scenes of a
// node need. The kernel has no part in what such a test shows.
func NeedsHost(t testing.TB, what string) {
	t.Helper()
	if os.Getenv(vm) != "" {
		t.Skipf("the virtual machine does not have %s", what)
	}
}

// NeedsVM skips on the machine itself: what such a test asks of the kernel is the
// whole machine's, or is in no module of this kernel. test/kernels runs it.
func NeedsVM(t testing.TB, what string) {
	t.Helper()
	if os.Getenv(vm) == "" {
		t.Skipf("only in a virtual machine (make kernels): %s", what)
	}
}

// NeedsKernel skips where this kernel cannot show what the test is about, and
// fails where skipping is not allowed. On the older kernels of test/kernels it
// is: which of them show what is in docs/kernels.md.
func NeedsKernel(t testing.TB, can bool, what string) {
	t.Helper()
	switch {
	case can:
	case os.Getenv(vm) != "":
		t.Skipf("kernel %s does not show %s", os.Getenv(vm), what)
	case os.Getenv("CI") != "":
		t.Fatalf("this kernel does not show %s, and in CI a test that would skip fails", what)
	default:
		t.Skipf("this kernel does not show %s", what)
	}
}

// KernelIs is true for a kernel that is at least of this version. It is for what
// nothing else tells before it is tried.
func KernelIs(major, minor int) bool {
	var u unix.Utsname
	var has, and int
	if unix.Uname(&u) == nil {
		_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &has, &and)
	}
	return has > major || has == major && and >= minor
}

// NeedsPrograms skips where a program is not installed, and fails where skipping
// is not allowed.
func NeedsPrograms(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		_, err := exec.LookPath(program)
		switch {
		case err == nil:
		case os.Getenv("CI") != "":
			t.Fatalf("%v (make deps installs it), and in CI a test that would skip fails", err)
		default:
			t.Skipf("%v (make deps installs it)", err)
		}
	}
}

// NeedsBuilt returns the directory beneath bin in which a target of the Makefile puts
// programs. It skips where they were not built, and fails where skipping is not allowed.
func NeedsBuilt(t testing.TB, target, dir string, names ...string) string {
	t.Helper()
	at := filepath.Join(ModuleRoot(t), "bin", dir)
	for _, name := range names {
		_, err := os.Stat(filepath.Join(at, name))
		switch {
		case err == nil:
		case os.Getenv("CI") != "":
			t.Fatalf("needs %s, and in CI a test that would skip fails (make %s): %v", name, target, err)
		default:
			t.Skipf("needs %s, which make %s builds: %v", name, target, err)
		}
	}
	return at
}

// ModuleRoot is the directory of this module: tests run somewhere beneath it.
func ModuleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	Must(t, err)
	for ; ; dir = filepath.Dir(dir) {
		raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(raw), "module github.com/csi-addons/node-healer\n") {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("this test does not run in its module")
		}
	}
}

// uniqueMountIDs is true where the mount table has ids that are never used
// again: without them a memory filesystem has no identity.
func uniqueMountIDs(t testing.TB) bool {
	t.Helper()
	ns, err := node.OpenNamespace("", nil)
	Must(t, err)
	defer ns.Close()
	table, err := ns.Mounts()
	Must(t, err)
	return len(table.Mounts()) > 0 && table.Mounts()[0].ID != 0
}
