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
// test. One hierarchy is enough to say whose it is.
func joinPod(t testing.TB, pid int, pod, id string) {
	t.Helper()
	for _, h := range ownCgroups(t, "pids") {
		if h.root == "" {
			continue
		}
		dir := filepath.Join(h.root, "kubepods/burstable/pod"+pod, id)
		Mkdir(t, dir)
		t.Cleanup(func() {
			Eventually(t, "the container's cgroup is empty", func() bool {
				err := os.Remove(dir)
				return err == nil || os.IsNotExist(err)
			})
			removePodCgroup(pod)
		})
		Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600))
		return
	}
	NeedsKernel(t, false, "a hierarchy of cgroups")
}
