package privilege

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPrivileges(t *testing.T) {
	const (
		all     = "CapEff:\t000001ffffffffff\n"
		whole   = "         0          0 4294967295\n"
		remap   = "         0     100000      65536\n"
		profile = "cri-containerd.apparmor.d (enforce)\n"
	)
	for name, tc := range map[string]struct {
		status, uidMap, label string
		pid                   int
		want                  Privileges
	}{
		"everything": {
			all + "Seccomp:\t0\n", whole, "", 4242,
			Privileges{Effective: "000001ffffffffff"},
		},
		// What a container runtime grants by default.
		"an ordinary container": {
			"CapEff:\t00000000a80425fb\nSeccomp:\t2\n", whole, profile, 1,
			Privileges{
				Effective: "00000000a80425fb", Missing: []string{"CAP_SYS_ADMIN", "CAP_SYS_PTRACE"},
				Filtered: true, Label: "cri-containerd.apparmor.d (enforce)", First: true,
			},
		},
		"no root": {
			"CapEff:\t0000000000000000\nSeccomp:\t0\n", whole, "", 7,
			Privileges{
				Effective: "0000000000000000",
				Missing:   []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"},
			},
		},
		"a user namespace":           {all, remap, "", 7, Privileges{Effective: "000001ffffffffff", UserMap: "0 100000 65536"}},
		"one id, mapped to itself":   {all, "0 0 1\n", "", 7, Privileges{Effective: "000001ffffffffff", UserMap: "0 0 1"}},
		"AppArmor, no profile":       {all, whole, "unconfined\n", 7, Privileges{Effective: "000001ffffffffff"}},
		"AppArmor that complains":    {all, whole, "docker-default (complain)\n", 7, Privileges{Effective: "000001ffffffffff"}},
		"SELinux, privileged":        {all, whole, "system_u:system_r:spc_t:s0\x00", 7, Privileges{Effective: "000001ffffffffff"}},
		"SELinux, a login":           {all, whole, "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\x00", 7, Privileges{Effective: "000001ffffffffff"}},
		"SELinux, a container":       {all, whole, "system_u:system_r:container_t:s0:c1,c2\x00", 7, Privileges{Effective: "000001ffffffffff", Label: "system_u:system_r:container_t:s0:c1,c2"}},
		"SELinux that is not set up": {all, whole, "kernel\x00", 7, Privileges{Effective: "000001ffffffffff"}},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			write(t, proc, "status", "Name:\tnode-healer\n"+tc.status)
			write(t, proc, "uid_map", tc.uidMap)
			if tc.label != "" {
				write(t, proc, "attr/current", tc.label)
			}
			got, err := privilegesIn(proc, tc.pid)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Missing, tc.want.Missing) {
				t.Errorf("lacks %v, want %v", got.Missing, tc.want.Missing)
			}
			got.Missing, tc.want.Missing = nil, nil
			if got.Effective != tc.want.Effective || got.UserMap != tc.want.UserMap || got.Filtered != tc.want.Filtered ||
				got.Label != tc.want.Label || got.First != tc.want.First {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestPrivilegesUnknown(t *testing.T) {
	proc := t.TempDir()
	if p, err := privilegesIn(proc, 7); err == nil {
		t.Errorf("without a status file: %+v", p)
	}
	write(t, proc, "status", "Name:\tnode-healer\n")
	if p, err := privilegesIn(proc, 7); err == nil {
		t.Errorf("without capabilities: %+v", p)
	}
}

// TestOwn compares with what root can do.
func TestOwn(t *testing.T) {
	p, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 && len(p.Missing) == 0 && p.UserMap == "" {
		t.Errorf("not root, and nothing is missing: %+v", p)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
