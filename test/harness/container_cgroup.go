package harness

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// removePodCgroup removes a pod's own cgroup, which runc leaves, as a kubelet
// would. Those above it are for all lanes.
func removePodCgroup(pod string) { removeCgroups(filepath.Join("burstable", "pod"+pod)) }

// removeCgroups removes directories below that of all pods, where they are empty.
func removeCgroups(dirs ...string) {
	for _, pattern := range []string{"/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/*/kubepods"} {
		roots, _ := filepath.Glob(pattern)
		for _, root := range roots {
			for _, dir := range dirs {
				_ = os.Remove(filepath.Join(root, dir))
			}
		}
	}
}

// joinPod puts a process into the cgroup of a container until the end of the
// test.
func joinPod(t testing.TB, pid int, pod, id string) {
	t.Helper()
	join(t, newPodCgroup(t, pod, id), pid)
}

func join(t testing.TB, cgroup string, pid int) {
	t.Helper()
	Must(t, os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600))
}

// newPodCgroup makes the cgroup of a container, and removes it at the end of the test, when
// its processes have ended. One hierarchy is enough to say whose they are.
func newPodCgroup(t testing.TB, pod, id string) (dir string) {
	t.Helper()
	for _, h := range ownCgroups(t, "pids") {
		if h.root == "" {
			continue
		}
		dir = filepath.Join(h.root, "kubepods/burstable/pod"+pod, id)
		Mkdir(t, dir)
		t.Cleanup(func() {
			Eventually(t, "the container's cgroup is empty", func() bool {
				err := os.Remove(dir)
				return err == nil || os.IsNotExist(err)
			})
			removePodCgroup(pod)
		})
		return dir
	}
	NeedsKernel(t, false, "a hierarchy of cgroups")
	return ""
}
