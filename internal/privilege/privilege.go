// Package privilege says what the kernel grants this process, and what it lacks for the work on
// mounts.
package privilege

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/printable"
)

// Privileges says what the kernel grants this process.
type Privileges struct {
	// Missing names the capabilities that the work takes and the process lacks,
	// the most wanted first.
	Missing []string
	// Effective are all capabilities, as CapEff shows them.
	Effective string
	// UserMap is the first line of uid_map in a user namespace of our own, where
	// capabilities do not count for the host's mounts; empty in the host's.
	UserMap string
	// Filtered is true when there is a seccomp filter.
	Filtered bool
	// Label is the AppArmor profile or SELinux context that confines the
	// process; empty when none does.
	Label string
	// First is true for process 1 of a pid namespace: a container without
	// hostPID, whose /proc/1 is not the host's.
	First bool
}

// needed are the capabilities of Missing (capabilities(7)).
var needed = []struct {
	name string
	// any of these will do
	bits []uint
}{
	// To clone, move, change and detach mounts, and to enter a mount namespace.
	{"CAP_SYS_ADMIN", []uint{unix.CAP_SYS_ADMIN}},
	// setns(2) into a mount namespace.
	{"CAP_SYS_CHROOT", []uint{unix.CAP_SYS_CHROOT}},
	// /proc/<pid>/ns of another process.
	{"CAP_SYS_PTRACE", []uint{unix.CAP_SYS_PTRACE}},
	// Directories that are closed to others.
	{"CAP_DAC_READ_SEARCH", []uint{unix.CAP_DAC_READ_SEARCH, unix.CAP_DAC_OVERRIDE}},
}

// Own reads what this process has.
func Own() (Privileges, error) { return privilegesIn("/proc/self", os.Getpid()) }

func privilegesIn(proc string, pid int) (Privileges, error) {
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return Privileges{}, fmt.Errorf("privileges: %w", err)
	}
	p := Privileges{First: pid == 1}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "CapEff":
			p.Effective = value
		case "Seccomp":
			p.Filtered = value == "2" // 1 is strict mode, in which this process could not read
		}
	}
	effective, err := strconv.ParseUint(p.Effective, 16, 64)
	if err != nil {
		return Privileges{}, fmt.Errorf("privileges: CapEff: %w", err)
	}
	for _, n := range needed {
		has := false
		for _, bit := range n.bits {
			has = has || effective&(1<<bit) != 0
		}
		if !has {
			p.Missing = append(p.Missing, n.name)
		}
	}
	// The first user namespace maps all ids to themselves (user_namespaces(7)); a kernel without
	// user namespaces has no such file.
	raw, _ := os.ReadFile(filepath.Join(proc, "uid_map"))
	first, _, _ := strings.Cut(string(raw), "\n")
	if ids := strings.Join(strings.Fields(first), " "); ids != "0 0 4294967295" {
		p.UserMap = ids
	}
	// The label of whatever security module there is, unless it confines nothing.
	raw, _ = os.ReadFile(filepath.Join(proc, "attr/current"))
	label := strings.TrimRight(string(raw), "\x00\n")
	switch context := strings.Split(label, ":"); {
	case label == "unconfined", strings.HasSuffix(label, "(complain)"), strings.HasSuffix(label, "(unconfined)"): // AppArmor
	case label == "kernel": // SELinux without a policy
	case len(context) >= 4 && (context[2] == "spc_t" || strings.HasPrefix(context[2], "unconfined_")):
		// SELinux: a super privileged container, or no container
	default:
		p.Label = label
	}
	return p, nil
}

// Lack is something that a privileged process has and this one does not have: what it is, how a
// pod gets it, and how to see that on the node.
type Lack struct{ What, Fix, Check string }

// self is the server's directory in /proc, for a shell on the node: its image
// has none.
const self = "/proc/$(pgrep -xo node-healer)"

// Lack returns the first lack that explains a refusal. Missing capabilities lead to
// EPERM, or to EACCES on a path walk and in /proc; a seccomp filter mostly to EPERM, and
// a security module to either.
func (p Privileges) Lack(notPermitted bool) (Lack, bool) {
	switch {
	case p.UserMap != "":
		return Lack{
			"this process is in a user namespace, where its capabilities do not count for the node's mounts",
			"no hostUsers: false in the pod",
			"cat " + self + "/uid_map shows 0 0 4294967295, and not " + p.UserMap,
		}, true
	case len(p.Missing) > 0:
		return Lack{
			fmt.Sprintf("this process lacks %s (CapEff %s)", strings.Join(p.Missing, ", "), p.Effective),
			"privileged: true, hostPID: true and Bidirectional mounts, as in deploy/daemonset",
			"grep CapEff " + self + "/status, or kubectl get ds -A -l app.kubernetes.io/name=node-healer -o jsonpath='{..privileged} {..hostPID}'",
		}, true
	case p.Label != "":
		return Lack{
			"this process has all capabilities, and is confined by " + printable.Line(p.Label, 64),
			"privileged: true without appArmorProfile and seLinuxOptions",
			"cat " + self + "/attr/current; dmesg | grep -i denied",
		}, true
	case p.Filtered && notPermitted:
		return Lack{
			"this process has all capabilities, and a seccomp filter",
			"privileged: true without seccompProfile",
			"grep Seccomp: " + self + "/status shows 0",
		}, true
	case p.First:
		return Lack{
			"this process is the first of its pid namespace, and /proc/1 not the node's",
			"hostPID: true in the pod, as in deploy/daemonset",
			"kubectl get ds -A -l app.kubernetes.io/name=node-healer -o jsonpath='{..hostPID}'",
		}, true
	}
	return Lack{}, false
}
