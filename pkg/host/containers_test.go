package host

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const podUID = "0d6a1c2e-1111-4222-8333-9444aaaa5555"

// procfs is a recorded tree with one process, which really runs.
func procfs(t *testing.T, cgroup, mountinfo string) Procfs {
	t.Helper()
	pid := os.Getpid()
	return Procfs(tree(t, map[string]string{
		fmt.Sprintf("%d/cgroup", pid):    cgroup,
		fmt.Sprintf("%d/mountinfo", pid): mountinfo,
		fmt.Sprintf("%d/ns/mnt", pid):    "-> mnt:[4026532000]",
		"self/cgroup":                    cgroup,
		"uptime":                         "1 1\n",
	}))
}

const hasIt = "1 0 0:20 / / rw - overlay overlay rw\n2 1 8:16 /sub /data rw - ext4 /dev/sdb rw\n"

func TestHolderByCgroup(t *testing.T) {
	under := strings.ReplaceAll(podUID, "-", "_")
	longer := podUID + "6"
	for name, tc := range map[string]struct {
		cgroup, pod string
		want        bool
	}{
		"cgroupfs, v2":          {"0::/kubepods/burstable/pod" + podUID + "/c1\n", podUID, true},
		"cgroupfs, guaranteed":  {"0::/kubepods/pod" + podUID + "/c1\n", podUID, true},
		"systemd, v2":           {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-c1.scope\n", podUID, true},
		"systemd, guaranteed":   {"0::/kubepods.slice/kubepods-pod" + under + ".slice/crio-c1.scope\n", podUID, true},
		"systemd, cgroup root":  {"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + under + ".slice/cri-containerd-c1.scope\n", podUID, true},
		"v1":                    {"12:cpu,cpuacct:/user.slice\n4:memory:/kubepods/besteffort/pod" + podUID + "/c1\n1:name=systemd:/\n", podUID, true},
		"hybrid":                {"1:name=systemd:/kubepods/pod" + podUID + "/c1\n0::/\n", podUID, true},
		"no newline at the end": {"0::/kubepods/pod" + podUID + "/c1", podUID, true},
		"static pod":            {"0::/kubepods/burstable/pod3f2b8c0e5d7a4b1c9e8f7a6b5c4d3e2f/c1\n", "3f2b8c0e5d7a4b1c9e8f7a6b5c4d3e2f", true},
		"itself, not in one":    {"0::/kubepods/pod" + podUID + "\n", podUID, true},

		"made by a container":        {"0::/kubepods/pod11111111-2222-3333-4444-555555555555/c1/kubepods/pod" + podUID + "/c1\n", podUID, false},
		"outside kubelet's":          {"0::/user.slice/pod" + podUID + "/c1\n", podUID, false},
		"another pod":                {"0::/kubepods/pod11111111-2222-3333-4444-555555555555/c1\n", podUID, false},
		"a longer uid":               {"0::/kubepods/pod" + longer + "/c1\n", podUID, false},
		"a shorter uid":              {"0::/kubepods/pod" + podUID + "/c1\n", longer, false},
		"a longer uid, systemd":      {"0::/kubepods.slice/kubepods-burstable-pod" + under + "6.slice/c1\n", podUID, false},
		"the end of a uid":           {"0::/kubepods/pod9-" + podUID + "/c1\n", podUID, false},
		"the uid of a container":     {"0::/kubepods/pod11111111-2222/" + podUID + "\n", podUID, false},
		"a service named like a pod": {"0::/system.slice/x-pod" + under + ".slice\n", podUID, false},
		"a v1 controller's name":     {"3:name=pod" + podUID + ":/user.slice\n", podUID, false},
		"no pod":                     {"0::/system.slice/containerd.service\n", podUID, false},
		"empty":                      {"", podUID, false},
		"junk":                       {"pod" + podUID + "\n", podUID, false},
		"nobody's":                   {"0::/kubepods/pod/c1\n", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := procfs(t, tc.cgroup, hasIt).Holder(tc.pod, Dev{8, 16}, "mnt:[1]")
			if err != nil || (h != nil) != tc.want {
				t.Fatalf("%+v, %v; want %v", h, err, tc.want)
			}
			if h == nil {
				return
			}
			defer h.Close()
			if h.PID != os.Getpid() || h.Root != "/sub" || h.Alive() != nil {
				t.Errorf("%+v, %v", h, h.Alive())
			}
		})
	}
}

func TestContainerOfACgroup(t *testing.T) {
	const id = "6f1d0c3b5a7e9f2d4c6b8a0e1f3d5c7b9a2e4f6d8c0b1a3e5f7d9c2b4a6e8f0d"
	under := strings.ReplaceAll(podUID, "-", "_")
	slice := "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/"
	for name, tc := range map[string]struct{ file, pod, container string }{
		"containerd, systemd":     {slice + "cri-containerd-" + id + ".scope\n", podUID, id},
		"CRI-O, systemd":          {slice + "crio-" + id + ".scope\n", podUID, id},
		"docker, systemd":         {slice + "docker-" + id + ".scope\n", podUID, id},
		"cgroupfs":                {"0::/kubepods/besteffort/pod" + podUID + "/" + id + "\n", podUID, id},
		"CRI-O, cgroupfs":         {"0::/kubepods/pod" + podUID + "/crio-" + id + "\n", podUID, id},
		"v1":                      {"3:cpu:/\n2:memory:/kubepods/pod" + podUID + "/" + id + "\n0::/\n", podUID, id},
		"deeper, made inside":     {slice + "cri-containerd-" + id + ".scope/kubepods/pod1/" + strings.Repeat("b", 64) + "\n", podUID, id},
		"CRI-O's monitor":         {slice + "crio-conmon-" + id + ".scope\n", podUID, ""},
		"the pod itself":          {slice + "\n", podUID, ""},
		"a directory of somebody": {"0::/kubepods/pod" + podUID + "/my things\n", podUID, ""},
		"named like a pod":        {"0::/kubepods/pod" + podUID + "/" + podUID + "\n", podUID, ""},
		"too long":                {"0::/kubepods/pod" + podUID + "/" + id + "0\n", podUID, ""},
		"outside kubelet's":       {"0::/system.slice/docker-" + id + ".scope\n", "", ""},
		"nothing":                 {"", "", ""},
	} {
		if pod, container := workloadIn(tc.file); pod != tc.pod || container != tc.container {
			t.Errorf("%s: pod %q container %q", name, pod, container)
		}
	}
}

func TestHolderHasTheSuperblockMounted(t *testing.T) {
	cgroup := "0::/kubepods/pod" + podUID + "/c1\n"
	for name, tc := range map[string]struct {
		mountinfo string
		namespace string
		want      bool
	}{
		"mounted":                 {hasIt, "mnt:[1]", true},
		"another device":          {"2 1 8:17 / /data rw - ext4 /dev/sdb rw\n", "mnt:[1]", false},
		"a longer number":         {"2 1 8:160 / /data rw - ext4 /dev/sdb rw\n3 1 18:16 / /b rw - ext4 /dev/sdb rw\n", "mnt:[1]", false},
		"only in a name":          {`2 1 0:5 / /data rw - ext4 8:16 rw` + "\n", "mnt:[1]", false},
		"nothing":                 {"", "mnt:[1]", false},
		"in the host's namespace": {hasIt, "mnt:[4026532000]", false},
		"in a table cut short":    {hasIt + "3 1 8:", "mnt:[1]", false},
	} {
		h, err := procfs(t, cgroup, tc.mountinfo).Holder(podUID, Dev{8, 16}, tc.namespace)
		if err != nil || (h != nil) != tc.want {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
		if h != nil {
			h.Close()
		}
	}
}

func TestHolderThatHasEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	proc := Procfs(tree(t, map[string]string{
		fmt.Sprintf("%d/cgroup", pid):    "0::/kubepods/pod" + podUID + "/c1\n",
		fmt.Sprintf("%d/mountinfo", pid): hasIt,
		fmt.Sprintf("%d/ns/mnt", pid):    "-> mnt:[4026532000]",
	}))
	before := countFDs(t)
	if h, err := proc.Holder(podUID, Dev{8, 16}, "mnt:[1]"); h != nil || err != nil {
		t.Errorf("%+v, %v", h, err)
	}
	if after := countFDs(t); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func TestHolderWithoutProcfs(t *testing.T) {
	if _, err := Procfs("/nonexistent").Holder(podUID, Dev{8, 16}, ""); err == nil {
		t.Error("no error: it looks as if nobody held the volume")
	}
}
