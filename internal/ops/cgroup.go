package ops

import (
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// WorkloadIn reads the text of a process's cgroup file. On cgroup v1 it has a line
// for each controller.
func WorkloadIn(file string) facts.Workload {
	var first facts.Workload
	for line := range strings.Lines(file) {
		_, cgroup, _ := strings.Cut(strings.TrimSpace(line), ":/")
		w := workloadOf(cgroup)
		if w.PodUID != "" {
			return w
		}
		if len(w.Dir) > len(first.Dir) {
			first = w
		}
	}
	return first
}

// workloadOf reads a cgroup path, as kubelet's two cgroup drivers and the runtimes
// write it:
//
//	kubepods/burstable/pod<uid>/<id>
//	kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
//
// The first pod below kubelet's own directory counts, and the directory right below that pod's:
// a container may have made the deeper ones itself, with names that look like another pod's.
func workloadOf(cgroup string) facts.Workload {
	inKubepods := false
	parts := strings.Split(cgroup, "/")
	for i, part := range parts {
		// With a --cgroup-root the slices carry its name in front.
		inKubepods = inKubepods || part == "kubepods" || part == "kubepods.slice" || strings.HasSuffix(part, "-kubepods.slice") ||
			strings.HasPrefix(part, "kubepods-") // seen from a cgroup namespace, or as below
		if !inKubepods {
			continue
		}
		// kubepods-pod<uid>.slice:cri-containerd:<id> is kubelet's name for systemd, used
		// as it is by a runtime that does without.
		part, id, inOne := strings.Cut(part, ":cri-containerd:")
		uid, isPod := strings.CutPrefix(part, "pod")
		if slice, isSlice := strings.CutSuffix(part, ".slice"); !isPod && isSlice {
			_, uid, isPod = strings.Cut(slice, "-pod")
			uid = strings.ReplaceAll(uid, "_", "-")
		}
		if !isPod {
			continue
		}
		if inOne {
			return facts.Workload{PodUID: uid, ContainerID: containerID(id), Dir: strings.Join(parts[:i+1], "/")}
		}
		w := facts.Workload{PodUID: uid, Dir: strings.Join(parts[:min(i+2, len(parts))], "/")}
		if i+1 < len(parts) {
			w.ContainerID = containerID(parts[i+1])
		}
		return w
	}
	return facts.Workload{Dir: cgroup}
}

// containerID reads the id from the directory that a runtime makes for a
// container. It is empty for any other directory, such as that of CRI-O's
// monitor (crio-conmon-<id>.scope), which is not in the container.
func containerID(dir string) string {
	id := strings.TrimSuffix(dir, ".scope")
	for _, runtime := range [...]string{"cri-containerd-", "crio-", "docker-", "libpod-"} {
		id = strings.TrimPrefix(id, runtime)
	}
	isHex := func(c rune) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }
	if len(id) < 12 || len(id) > 64 || strings.TrimFunc(id, isHex) != "" {
		return ""
	}
	return id
}
