package engine

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/internal/privilege"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const target = "/var/lib/kubelet/pods/0d1c5a2e-0000-4000-8000-000000000001/volumes/kubernetes.io~csi/pvc-1/mount"

// everything is a CapEff of all capabilities.
const everything = "000001ffffffffff"

var permissionExplanations = map[string]struct {
	has  privilege.Privileges
	err  error
	says []string
	not  []string
}{
	"capabilities": {
		has: privilege.Privileges{Effective: "00000000a80425fb", Missing: []string{"CAP_SYS_ADMIN", "CAP_SYS_PTRACE"}, Filtered: true, Label: "docker-default (enforce)", First: true},
		err: fmt.Errorf("mount point: clone %q: %w", "/staging", syscall.EPERM),
		says: []string{
			"rebind is not permitted: this process lacks CAP_SYS_ADMIN, CAP_SYS_PTRACE (CapEff 00000000a80425fb)",
			"Fix: privileged: true, hostPID: true and Bidirectional", "Check on the node: grep CapEff ", "kubectl get ds",
		},
		not: []string{"seccomp", "docker-default"},
	},
	"a way through directories": {
		has:  privilege.Privileges{Effective: "0000000000200000", Missing: []string{"CAP_DAC_READ_SEARCH"}},
		err:  fmt.Errorf("finalize: resolve: %w", syscall.EACCES),
		says: []string{"this process lacks CAP_DAC_READ_SEARCH"},
	},
	"a user namespace, in which all capabilities are there": {
		has:  privilege.Privileges{Effective: everything, UserMap: "0 100000 65536"},
		err:  syscall.EPERM,
		says: []string{"user namespace", "Fix: no hostUsers: false", "uid_map shows 0 0 4294967295, and not 0 100000 65536"},
		not:  []string{"lacks"},
	},
	"a security module": {
		has:  privilege.Privileges{Effective: everything, Label: "cri-containerd.apparmor.d (enforce)"},
		err:  syscall.EACCES,
		says: []string{"all capabilities, and is confined by cri-containerd.apparmor.d (enforce)", "without appArmorProfile", "dmesg"},
	},
	"a filter": {
		has:  privilege.Privileges{Effective: everything, Filtered: true},
		err:  syscall.EPERM,
		says: []string{"seccomp filter", "without seccompProfile", "grep Seccomp: "},
	},
	"another process 1": {
		has:  privilege.Privileges{Effective: everything, First: true},
		err:  syscall.EACCES,
		says: []string{"/proc/1 not the node's", "Fix: hostPID: true"},
	},
}

func TestExplainPermission(t *testing.T) {
	for name, tc := range permissionExplanations {
		t.Run(name, func(t *testing.T) {
			err := ExplainPermission("rebind", target, tc.err, having(tc.has))
			text := err.Error()
			if len(text) >= 500 {
				t.Errorf("%d bytes: %s", len(text), text)
			}
			for _, s := range append(tc.says, "Denied at \""+target) {
				if !strings.Contains(text, s) {
					t.Errorf("%q lacks %q", text, s)
				}
			}
			for _, s := range tc.not {
				if strings.Contains(text, s) {
					t.Errorf("%q has %q", text, s)
				}
			}
			// The part of a message that is sure to be there.
			if at := strings.Index(text, ". Check on the node"); at < 0 || at > 240 {
				t.Errorf("what to do ends at byte %d of %q", at, text)
			}
			if !errors.Is(err, tc.err) || healer.Classify(err) != (api.Class{Tier: api.Terminal, Type: api.TypePermission}) {
				t.Errorf("the original is out of reach of %v", err)
			}
		})
	}
}

func having(p privilege.Privileges) func() (privilege.Privileges, error) {
	return func() (privilege.Privileges, error) { return p, nil }
}

// TestExplainPermissionNot returns errors that nothing here explains, and gets
// them back.
func TestExplainPermissionNot(t *testing.T) {
	none := privilege.Privileges{Missing: []string{"CAP_SYS_ADMIN"}}
	for name, tc := range map[string]struct {
		own func() (privilege.Privileges, error)
		err error
	}{
		"no error":                      {having(none), nil},
		"another one":                   {having(none), syscall.EBUSY},
		"a refusal of ours":             {having(none), fmt.Errorf("%w: taking ours off again: %w", healer.ErrRefused, syscall.EPERM)},
		"a lost worker":                 {having(none), worker.ErrLost},
		"nothing is missing":            {having(privilege.Privileges{}), syscall.EPERM},
		"a filter gives no EACCES":      {having(privilege.Privileges{Filtered: true}), syscall.EACCES},
		"the privileges cannot be read": {func() (privilege.Privileges, error) { return none, errors.New("no /proc") }, syscall.EPERM},
	} {
		if got := ExplainPermission("rebind", target, tc.err, tc.own); got != tc.err { //nolint:errorlint // the same, not one that wraps it
			t.Errorf("%s: %v became %v", name, tc.err, got)
		}
	}
}

func TestExplainPermissionBounds(t *testing.T) {
	p := privilege.Privileges{Effective: "0", Label: strings.Repeat("ä", 4096)}
	for range 2 {
		text := ExplainPermission("rebind", "/"+strings.Repeat("ü", 4096), syscall.EPERM, having(p)).Error()
		if len(text) >= 500 || !strings.Contains(text, "Fix: ") || !strings.Contains(text, "Check on the node: ") {
			t.Errorf("%d bytes: %s", len(text), text)
		}
		p.Label, p.Missing = "", []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}
	}
}

// TestStuckStepStaysStuck: an explanation must not hide that a worker goes on.
func TestStuckStepStaysStuck(t *testing.T) {
	stuck := &stillAtIt{ended: make(chan struct{})}
	err := ExplainPermission("rebind", target, errors.Join(stuck, syscall.EPERM), having(privilege.Privileges{Missing: []string{"CAP_SYS_ADMIN"}}))
	if !strings.Contains(err.Error(), "CAP_SYS_ADMIN") || len(stuckBehind(err)) != 1 {
		t.Errorf("%v has %d workers still running", err, len(stuckBehind(err)))
	}
}

type stillAtIt struct{ ended chan struct{} }

func (*stillAtIt) Error() string            { return "stuck" }
func (s *stillAtIt) Ended() <-chan struct{} { return s.ended }

// TestExplainInspectionNot returns answers of a storage that refused, which are no
// matter of what this process has.
func TestExplainInspectionNot(t *testing.T) {
	for _, a := range []facts.Answer{
		{},
		{Op: "open_tree", Errno: syscall.EACCES},
		{Op: "open_tree", Errno: syscall.EINVAL},
		{Op: "statx", Errno: syscall.EPERM},
		{Op: "open", Errno: syscall.EACCES},
	} {
		if err := explainInspection(target, a); err != nil {
			t.Errorf("%+v is our own trouble: %v", a, err)
		}
	}
}
