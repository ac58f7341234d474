package privilege

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What procfs says.
const (
	all     = "CapEff:\t000001ffffffffff\n"
	whole   = "         0          0 4294967295\n"
	remap   = "         0     100000      65536\n"
	profile = "cri-containerd.apparmor.d (enforce)\n"
)

// everything has all capabilities, in the first user namespace.
var everything = Privileges{Effective: "000001ffffffffff"}

var privilegeCases = map[string]struct {
	status, uidMap, label string
	pid                   int
	want                  Privileges
}{
	"everything": {status: all + "Seccomp:\t0\n", uidMap: whole, pid: 4242, want: everything},
	// What a container runtime grants by default.
	"an ordinary container": {
		status: "CapEff:\t00000000a80425fb\nSeccomp:\t2\n",
		uidMap: whole,
		label:  profile,
		pid:    1,
		want: Privileges{
			Effective: "00000000a80425fb", Missing: []string{"CAP_SYS_ADMIN", "CAP_SYS_PTRACE"},
			Filtered: true, Label: "cri-containerd.apparmor.d (enforce)", First: true,
		},
	},
	"no root": {
		status: "CapEff:\t0000000000000000\nSeccomp:\t0\n",
		uidMap: whole,
		pid:    7,
		want: Privileges{
			Effective: "0000000000000000",
			Missing:   []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"},
		},
	},
	"a user namespace": {
		status: all,
		uidMap: remap,
		pid:    7,
		want:   Privileges{Effective: "000001ffffffffff", UserMap: "0 100000 65536"},
	},
	"one id, mapped to itself": {
		status: all,
		uidMap: "0 0 1\n",
		pid:    7,
		want:   Privileges{Effective: "000001ffffffffff", UserMap: "0 0 1"},
	},
	"AppArmor, no profile":    {status: all, uidMap: whole, label: "unconfined\n", pid: 7, want: everything},
	"AppArmor that complains": {status: all, uidMap: whole, label: "docker-default (complain)\n", pid: 7, want: everything},
	"SELinux, privileged": {
		status: all,
		uidMap: whole,
		label:  "system_u:system_r:spc_t:s0\x00",
		pid:    7,
		want:   everything,
	},
	"SELinux, a login": {
		status: all,
		uidMap: whole,
		label:  "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\x00",
		pid:    7,
		want:   everything,
	},
	"SELinux, a container": {
		status: all,
		uidMap: whole,
		label:  "system_u:system_r:container_t:s0:c1,c2\x00",
		pid:    7,
		want:   Privileges{Effective: "000001ffffffffff", Label: "system_u:system_r:container_t:s0:c1,c2"},
	},
	"SELinux that is not set up": {status: all, uidMap: whole, label: "kernel\x00", pid: 7, want: everything},
}

func TestPrivileges(t *testing.T) {
	for name, tc := range privilegeCases {
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
