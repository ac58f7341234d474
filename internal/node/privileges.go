package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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

// OwnPrivileges reads what this process has.
func OwnPrivileges() (Privileges, error) { return privilegesIn("/proc/self", os.Getpid()) }

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
	p.UserMap = ownUserMap(proc)
	p.Label = confinement(proc)
	return p, nil
}

// ownUserMap returns the first line of uid_map if it does not map all ids to
// themselves, as the first user namespace does (user_namespaces(7)).
func ownUserMap(proc string) string {
	raw, err := os.ReadFile(filepath.Join(proc, "uid_map"))
	if err != nil {
		return "" // a kernel without user namespaces
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	ids := strings.Join(strings.Fields(first), " ")
	if ids == "0 0 4294967295" {
		return ""
	}
	return ids
}

// confinement reads the label of whatever security module there is, and leaves
// out labels that confine nothing.
func confinement(proc string) string {
	raw, err := os.ReadFile(filepath.Join(proc, "attr/current"))
	if err != nil {
		return "" // no such module
	}
	label := strings.TrimRight(string(raw), "\x00\n")
	switch context := strings.Split(label, ":"); {
	case label == "unconfined", strings.HasSuffix(label, "(complain)"), strings.HasSuffix(label, "(unconfined)"):
		return "" // AppArmor
	case label == "kernel":
		return "" // SELinux without a policy
	case len(context) >= 4 && (context[2] == "spc_t" || strings.HasPrefix(context[2], "unconfined_")):
		return "" // SELinux: a super privileged container, or no container
	}
	return label
}
