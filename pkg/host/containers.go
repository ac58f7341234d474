package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/touch/mountinfo"
)

// Procfs is where procfs is mounted, "/proc" but in tests.
type Procfs string

// Holder is a process of a pod that has a superblock mounted in its own mount
// namespace: while it runs, kubelet does not unpublish the volume.
type Holder struct {
	PID int
	// Cgroup is the path that names pod and container.
	Cgroup string
	// Root is the directory of the filesystem that the process has mounted.
	Root string
	// pidfd keeps speaking of this process when its number is used again.
	pidfd *os.File
}

// Holder finds a running process of the pod that has the superblock mounted
// outside the host's namespace; nil when there is none. The caller closes it.
func (p Procfs) Holder(podUID string, dev Dev, hostNamespace string) (*Holder, error) {
	if podUID == "" {
		return nil, nil //nolint:nilnil // no pod, no holder; documented
	}
	entries, err := os.ReadDir(string(p))
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	looked := map[string]bool{hostNamespace: true}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if _, ofPod := p.cgroupOf(pid, podUID); !ofPod {
			continue
		}
		namespace, err := os.Readlink(p.path(pid, "ns/mnt"))
		if err != nil || looked[namespace] {
			continue // a zombie has none
		}
		looked[namespace] = true
		if h := p.hold(pid, podUID, dev); h != nil {
			return h, nil
		}
	}
	return nil, nil //nolint:nilnil // nobody holds it; documented
}

// hold opens a pidfd and then looks, so that everything seen is true of the
// process the pidfd speaks of.
func (p Procfs) hold(pid int, podUID string, dev Dev) *Holder {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	h := &Holder{PID: pid, pidfd: os.NewFile(uintptr(fd), "pidfd")}
	cgroup, ofPod := p.cgroupOf(pid, podUID)
	root, mounted := p.hasMounted(pid, dev)
	if !ofPod || !mounted || h.Alive() != nil {
		h.Close()
		return nil
	}
	h.Cgroup, h.Root = cgroup, root
	return h
}

func (p Procfs) path(pid int, name string) string {
	return filepath.Join(string(p), strconv.Itoa(pid), name)
}

// cgroupOf gives the cgroup path of a process that belongs to the pod.
func (p Procfs) cgroupOf(pid int, podUID string) (string, bool) {
	raw, err := os.ReadFile(p.path(pid, "cgroup"))
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(raw)) {
		_, cgroup, _ := strings.Cut(strings.TrimSpace(line), ":/")
		if podOf(cgroup) == podUID {
			return cgroup, true
		}
	}
	return "", false
}

// podOf reads the pod UID from a cgroup path.
func podOf(cgroup string) string {
	podUID, _ := workloadOf(cgroup)
	return podUID
}

// workloadOf reads pod UID and container id from a cgroup path, as kubelet's two
// cgroup drivers and the runtimes write it:
//
//	kubepods/burstable/pod<uid>/<id>
//	kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
//
// The first pod below kubelet's own directory counts, and what stands right
// below it: what lies deeper a container may have made itself.
func workloadOf(cgroup string) (podUID, container string) {
	inKubepods := false
	parts := strings.Split(cgroup, "/")
	for i, part := range parts {
		// With a --cgroup-root the slices carry its name in front.
		inKubepods = inKubepods || part == "kubepods" || part == "kubepods.slice" || strings.HasSuffix(part, "-kubepods.slice")
		if !inKubepods {
			continue
		}
		uid, isPod := strings.CutPrefix(part, "pod")
		if slice, isSlice := strings.CutSuffix(part, ".slice"); !isPod && isSlice {
			_, uid, isPod = strings.Cut(slice, "-pod")
			uid = strings.ReplaceAll(uid, "_", "-")
		}
		if isPod {
			if i+1 < len(parts) {
				container = containerID(parts[i+1])
			}
			return uid, container
		}
	}
	return "", ""
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

// workloadIn reads pod UID and container id from the text of a process's cgroup
// file. On cgroup v1 it has a line for each controller.
func workloadIn(file string) (podUID, container string) {
	for line := range strings.Lines(file) {
		_, cgroup, _ := strings.Cut(strings.TrimSpace(line), ":/")
		if podUID, container = workloadOf(cgroup); podUID != "" {
			return podUID, container
		}
	}
	return "", ""
}

// hasMounted looks for the superblock in the process's mount table.
func (p Procfs) hasMounted(pid int, dev Dev) (root string, mounted bool) {
	f, err := os.Open(p.path(pid, "mountinfo"))
	if err != nil {
		return "", false
	}
	defer f.Close()
	number := dev.String()
	err = mountinfo.Parse(f, func(e mountinfo.Entry) error {
		if !mounted && e.Dev == number {
			root, mounted = e.Root, true
		}
		return nil
	})
	return root, mounted && err == nil
}

// Alive fails once the process has ended.
func (h *Holder) Alive() error {
	poll := []unix.PollFd{{Fd: int32(h.pidfd.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 0); err != nil || n != 0 {
		return fmt.Errorf("process %d has ended", h.PID)
	}
	return nil
}

// Close frees the pidfd.
func (h *Holder) Close() { _ = h.pidfd.Close() }
