package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestPermissionOfStep takes from the server what a rebind needs and a check does
// not: the step fails, nothing changes, and the message says what is missing and
// what to do about it.
func TestPermissionOfStep(t *testing.T) {
	h := newDenied(harness.NewNode(t, "--standalone"), harness.Filtered(unix.SYS_MOVE_MOUNT))
	before := h.n.Table()
	for range 2 {
		h.n.Expect("abnormal", h.v.Request(), "NotMounted", "rebind is not permitted: this process has all capabilities, and a seccomp filter",
			"Fix: privileged: true without seccompProfile", "Afterwards the same")
		h.n.SameTable(before)
	}
	if log := audit(t, h.n); strings.Count(log, `"outcome":"terminal/permission: rebind is not permitted`) != 2 {
		t.Errorf("the audit log:\n%s", log)
	}
	h.restored()
}

// TestPermissionForACheck takes from the server what even a check needs. That says
// nothing about a volume, and none is reported as sick.
func TestPermissionForACheck(t *testing.T) {
	for name, c := range map[string]struct {
		less harness.Lessen
		says string
	}{
		"no CAP_SYS_ADMIN": {harness.Without(unix.CAP_SYS_ADMIN), "this process lacks CAP_SYS_ADMIN (CapEff "},
		"a user namespace": {harness.InUserNamespace, "user namespace"},
		"no open_tree":     {harness.Filtered(unix.SYS_OPEN_TREE), "seccomp filter"},
		"no mount_setattr": {harness.Filtered(unix.SYS_MOUNT_SETATTR), "seccomp filter"},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone")
			healthy := n.NewVolume("ext4", "untouched")
			h := newDenied(n, c.less)
			before := h.n.Table()
			for _, v := range []*harness.Volume{h.v, healthy} {
				a, err := h.n.Call(v.Request())
				if status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "Fix: ") {
					t.Errorf("got %v, %v", a, err)
				}
			}
			h.n.SameTable(before)
			h.restored()
		})
	}
}

// TestPermissionAtStart takes from the server what the way to the host's mounts
// needs: it does not start, and says why.
func TestPermissionAtStart(t *testing.T) {
	for name, c := range map[string]struct {
		less harness.Lessen
		says string
	}{
		"no CAP_SYS_ADMIN":  {harness.Without(unix.CAP_SYS_ADMIN), "this process lacks CAP_SYS_ADMIN"},
		"no CAP_SYS_CHROOT": {harness.Without(unix.CAP_SYS_CHROOT), "this process lacks CAP_SYS_CHROOT"},
		"a user namespace":  {harness.InUserNamespace, "user namespace"},
		"a filter":          {harness.Filtered(unix.SYS_SETNS), "seccomp filter"},
	} {
		t.Run(name, func(t *testing.T) {
			harness.NeedsRoot(t)
			dir := t.TempDir()
			cmd := exec.CommandContext(within(t), harness.Server(), "--standalone", "--driver-name="+harness.Driver,
				"--kubelet-root="+dir, "--state-dir="+filepath.Join(dir, "state"), "--endpoint=unix://"+filepath.Join(dir, "run", "s.sock"),
				fmt.Sprintf("--host-mount-namespace=/proc/%d/ns/mnt", os.Getpid()))
			var out strings.Builder
			cmd.Stderr = &out
			harness.Must(t, harness.StartLess(cmd, c.less))
			err := cmd.Wait()
			if cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("ended with %v, want exit code 1", err)
			}
			for _, says := range []string{c.says, "Fix: ", "Check on the node: "} {
				if !strings.Contains(out.String(), says) {
					t.Errorf("lacks %q:\n%s", says, out.String())
				}
			}
		})
	}
}

// denied is a volume whose published mount is lost, on a node whose server lacks
// something.
type denied struct {
	n     *harness.Node
	v     *harness.Volume
	whole []string
	sum   string
}

func newDenied(n *harness.Node, less harness.Lessen) denied {
	n.T.Helper()
	n.Start()
	h := denied{n: n, v: n.NewVolume("ext4", "denied")}
	n.Expect("healthy", h.v.Request())
	h.whole, h.sum = n.Table(), h.v.Sum(h.v.MountPoint())
	n.Stop()
	n.Less = []harness.Lessen{less}
	n.Start()
	h.v.Unpublish()
	return h
}

// restored returns the server back what it lacked: nothing else was wrong.
func (h denied) restored() {
	h.n.T.Helper()
	h.n.Stop()
	h.n.Less = nil
	h.n.Start()
	h.n.Expect("healed", h.v.Request())
	h.n.SameTable(h.whole)
	if h.v.Sum(h.v.MountPoint()) != h.sum {
		h.n.T.Error("the data at the mount point differs")
	}
}

func audit(t *testing.T, n *harness.Node) string {
	t.Helper()
	raw, err := os.ReadFile(n.StateDir() + "/audit.log")
	harness.Must(t, err)
	return string(raw)
}
