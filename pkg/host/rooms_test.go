package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRooms(t *testing.T) {
	n := containersNode(
		t, process(30, "a", podUID, ""), process(4, "a", podUID, ""), process(100, "a", "", ""), process(5, "b", "", ""),
		process(6, "host", podUID, ""), process(200, "a", "", ""), process(300, "a", "", ""),
	)
	w, err := n.cfg.Procfs.walk(n.hostNamespace)
	var got []string
	for _, r := range w.rooms {
		got = append(got, fmt.Sprint(strings.TrimPrefix(r.namespace, "../../ns/"), r.pids, r.podUID == podUID, r.container != ""))
	}
	// The oldest tell whose it is: others may be executed in it by anybody.
	if want := []string{"a[4 30 100 200] true true", "b[5] false false"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, want %q, %v", got, want, err)
	}
}

// When a daemon that served many volumes dies, all are asked about at once.
func TestRoomsAreSharedByThoseWhoWait(t *testing.T) {
	n := containersNode(t, process(10, "a", podUID, volumeIn))
	look := func() int {
		t.Helper()
		found, err := n.InContainers(nil, isVolume)
		if err != nil {
			t.Fatal(err)
		}
		return len(found.Mounts)
	}
	if look() != 1 {
		t.Fatal("not found")
	}
	later := process(11, "b", podUID, volumeIn)
	for name, text := range later {
		p := filepath.Join(string(n.cfg.Procfs), name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		write := func() error { return os.WriteFile(p, []byte(text), 0o600) }
		if target, isLink := strings.CutPrefix(text, "-> "); isLink {
			write = func() error { return os.Symlink(target, p) }
		}
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	n.rooms.began = time.Now().Add(time.Hour) // a walk that began after it was asked for
	if look() != 1 {
		t.Error("who waited for a walk did not share it")
	}
	n.rooms.began = time.Now()
	if look() != 2 {
		t.Error("a container that was started since is never found")
	}
	// What it has mounted is read each time.
	table := filepath.Join(string(n.cfg.Procfs), "10/mountinfo")
	if err := os.WriteFile(table, []byte("1 0 0:20 / / rw - overlay overlay rw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if look() != 1 {
		t.Error("an old mount table was believed")
	}
}

func TestWalkThatFailedIsNotKept(t *testing.T) {
	n := containersNode(t, process(10, "a", podUID, volumeIn))
	procfs := n.cfg.Procfs
	n.cfg.Procfs = "/nonexistent"
	if _, err := n.InContainers(nil, isVolume); err == nil {
		t.Error("no error")
	}
	n.cfg.Procfs = procfs
	if found, err := n.InContainers(nil, isVolume); err != nil || len(found.Mounts) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
}

// What runs there runs on a kernel of its own.
func TestSandboxes(t *testing.T) {
	for name, tc := range map[string]struct{ comm, cmdline, want string }{
		"Kata with QEMU":             {comm: "qemu-system-x86", want: "qemu-system-"},
		"Kata with Cloud Hypervisor": {comm: "cloud-hyperviso", want: "cloud-hyperviso"},
		"Kata with Firecracker":      {comm: "firecracker", want: "firecracker"},
		"Kata's file server":         {comm: "virtiofsd", want: "virtiofsd"},
		"gVisor":                     {comm: "exe", cmdline: "runsc-sandbox\x00--root=/run", want: "runsc-sandbox"},
		"gVisor by its path":         {comm: "exe", cmdline: "/usr/bin/runsc\x00boot", want: "runsc"},
		"gVisor's file server":       {comm: "runsc-gofer", want: "runsc-gofer"},
		"another exe":                {comm: "exe", cmdline: "/bin/app\x00runsc"},
		"an exe that says nothing":   {comm: "exe"},
		"a name that starts alike":   {comm: "firecrackers"},
		"a name that ends alike":     {comm: "my-runsc"},
		"an ordinary process":        {comm: "postgres"},
		"no name":                    {},
	} {
		t.Run(name, func(t *testing.T) {
			// gVisor's processes are in the host's mount namespace or in one of their own.
			var processes []map[string]string
			for pid, namespace := range map[int]string{10: "a", 11: "host", 12: "a"} {
				p := process(pid, namespace, podUID, volumeIn)
				p[fmt.Sprintf("%d/comm", pid)] = tc.comm + "\n"
				p[fmt.Sprintf("%d/cmdline", pid)] = tc.cmdline
				processes = append(processes, p)
			}
			n := containersNode(t, processes...)
			for pods, want := range map[string]bool{podUID: true, otherUID: false} { // of one walk
				found, err := n.InContainers([]string{pods}, isVolume)
				var sandboxes []Sandbox
				if want && tc.want != "" {
					sandboxes = []Sandbox{{PodUID: podUID, Program: tc.want}}
				}
				if err != nil || !slices.Equal(found.Sandboxes, sandboxes) {
					t.Errorf("%+v, want %+v, %v", found.Sandboxes, sandboxes, err)
				}
			}
		})
	}
	machine := process(10, "host", "", "")
	machine["10/comm"] = "qemu-system-x86\n"
	if found, err := containersNode(t, machine).InContainers(nil, isVolume); err != nil || len(found.Sandboxes) != 0 {
		t.Errorf("a virtual machine outside of pods: %+v, %v", found.Sandboxes, err)
	}
}
