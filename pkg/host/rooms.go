package host

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// rooms finds the mount namespaces that there are, by one walk over all processes
// at a time: when a daemon that served many volumes dies, all of them are asked
// about at once, and a walk costs some 35 us of CPU per process. Who waits for one
// shares the next.
type rooms struct {
	mu    sync.Mutex
	began time.Time
	last  walk
}

// walk is what one walk found.
type walk struct {
	rooms     []room
	sandboxes []Sandbox
}

// room is one mount namespace other than the host's.
type room struct {
	// namespace is the text of the link in procfs.
	namespace string
	// pids are some of the processes in it, the oldest first as far as numbers tell:
	// the container's own comes before what is executed in it.
	pids []int
	// podUID and container are those of the first; empty outside of pods.
	podUID, container string
}

// maxPIDs is how many processes of a namespace are kept in mind, should one end.
const maxPIDs = 4

func (k *rooms) all(p Procfs, hostNamespace string) (walk, error) {
	asked := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.began.After(asked) {
		return k.last, nil
	}
	began := time.Now()
	w, err := p.walk(hostNamespace)
	if err == nil {
		k.began, k.last = began, w
	}
	return w, err
}

// walk looks at all processes, by their numbers.
func (p Procfs) walk(hostNamespace string) (w walk, err error) {
	pids, err := p.processes()
	if err != nil {
		return w, err
	}
	known := map[string]int{} // into rooms
	for _, pid := range pids {
		namespace, err := os.Readlink(p.path(pid, "ns/mnt"))
		if err != nil {
			continue // it has ended
		}
		sandbox := p.sandboxOf(pid)
		at, is := known[namespace]
		if is && len(w.rooms[at].pids) < maxPIDs {
			w.rooms[at].pids = append(w.rooms[at].pids, pid)
		}
		if sandbox == "" && (is || namespace == hostNamespace) {
			continue
		}
		raw, err := os.ReadFile(p.path(pid, "cgroup"))
		if err != nil {
			continue
		}
		podUID, container := workloadIn(string(raw))
		if s := (Sandbox{podUID, sandbox}); sandbox != "" && podUID != "" && !slices.Contains(w.sandboxes, s) {
			w.sandboxes = append(w.sandboxes, s)
		}
		if !is && namespace != hostNamespace {
			known[namespace] = len(w.rooms)
			w.rooms = append(w.rooms, room{namespace: namespace, pids: []int{pid}, podUID: podUID, container: container})
		}
	}
	return w, nil
}

// processes gives the numbers of all processes, the lowest first.
func (p Procfs) processes() ([]int, error) {
	entries, err := os.ReadDir(string(p))
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// isIn is true while a process is in a mount namespace.
func (p Procfs) isIn(pid int, namespace string) bool {
	now, err := os.Readlink(p.path(pid, "ns/mnt"))
	return err == nil && now == namespace
}

// sandboxes are the programs that run containers on a kernel of their own (Kata
// Containers with its hypervisors, gVisor), as the kernel shows them: cut after
// 15 bytes.
var sandboxes = []string{
	"qemu-system-", "cloud-hyperviso", "firecracker", "stratovirt", "dragonball", "virtiofsd", "nydusd",
	"runsc-sandbox", "runsc-gofer", "runsc",
}

// sandboxOf names the program that a process is, if it belongs to a sandbox. gVisor
// calls itself exe; its first argument tells.
func (p Procfs) sandboxOf(pid int) string {
	comm, err := os.ReadFile(p.path(pid, "comm"))
	if err != nil {
		return ""
	}
	name := strings.TrimSpace(string(comm))
	if name == "exe" {
		args, _ := os.ReadFile(p.path(pid, "cmdline"))
		first, _, _ := bytes.Cut(args, []byte{0})
		name = path.Base(string(first))
	}
	for _, s := range sandboxes {
		if name == s || strings.HasSuffix(s, "-") && strings.HasPrefix(name, s) {
			return s
		}
	}
	return ""
}
