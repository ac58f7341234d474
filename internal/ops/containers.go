package ops

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// containers returns the containers among processes: by cgroup directory, the processes that are
// in another mount namespace than the host's.
func (o *owners) containers(s *scan) (found []facts.Container, err error) {
	pids, err := s.otherProcesses()
	if err != nil {
		return nil, err
	}
	home, err := s.proc.namespaceOf("thread-self")
	if err != nil {
		return nil, fmt.Errorf("our own mount namespace: %w", err)
	}
	byDir := map[string][]process{}
	for _, p := range s.describe(pids) {
		if !p.unplaced || p.PodUID != "" {
			byDir[p.Dir] = append(byDir[p.Dir], p)
		}
	}
	for _, members := range byDir {
		if c, is := o.container(s.proc, members, home); is {
			found = append(found, c)
		}
	}
	for i := range found { // any process may be called pause: that one is the first of its pod
		c := &found[i]
		c.Pause = c.Pause && !slices.ContainsFunc(found, func(o facts.Container) bool { return o.PodUID == c.PodUID && o.Started < c.Started })
	}
	slices.SortFunc(found, func(a, b facts.Container) int { return cmp.Compare(a.Dir, b.Dir) })
	return found, nil
}

// sandboxes are the programs that run containers on a kernel of their own (Kata
// Containers with its hypervisors, gVisor), as the kernel shows them: cut after
// 15 bytes.
var sandboxes = []string{
	"qemu-system-", "qemu-kvm", "cloud-hyperviso", "firecracker", "stratovirt", "dragonball", "virtiofsd", "nydusd",
	"runsc-sandbox", "runsc-gofer", "runsc",
}

// sandbox returns the name in sandboxes of the program that a process runs; empty if it has none.
func (p process) sandbox() string {
	for _, s := range sandboxes {
		if p.program == s || strings.HasSuffix(s, "-") && strings.HasPrefix(p.program, s) {
			return s
		}
	}
	return ""
}

// container returns the container that the processes of one cgroup directory are; found is false
// where they are in the host's mount namespace, or have ended. home is the inode number of that
// namespace. The namespace of the oldest process counts that has one of the host's owner: a
// container's later processes choose theirs themselves.
func (o *owners) container(proc procfs, members []process, home uint64) (c facts.Container, found bool) {
	slices.SortFunc(members, func(a, b process) int {
		return cmp.Or(cmp.Compare(a.Started, b.Started), cmp.Compare(a.PID, b.PID))
	})
	c = facts.Container{Workload: members[0].Workload, Started: members[0].Started}
	c.Pause = len(members) == 1 && members[0].program == "pause"
	c.Unplaced = slices.ContainsFunc(members, func(p process) bool { return p.unplaced })
	for i, p := range members {
		// Any process of a container may have any name, but for its first one, and for
		// what stays in the host's mount namespace: Kata's shim is older than the
		// hypervisor beside it. Where there is no container id, only the runtime itself
		// puts processes.
		if p.PodUID != "" && (i == 0 || p.ContainerID == "" || p.namespace == home) {
			c.Sandbox = cmp.Or(c.Sandbox, p.sandbox())
		}
	}
	if c.Sandbox != "" {
		return c, true
	}
	for _, p := range members {
		if p.unplaced {
			continue
		}
		owned := false
		err := proc.inThread(p.PID, func(dir string) (err error) {
			owned, err = o.of(proc, dir, p.namespace)
			return err
		})
		switch {
		case err != nil:
			c.Unplaced = c.Unplaced || !gone(err) && p.PodUID != ""
		case !owned:
			c.Foreign = true
		case (c.Foreign || c.Unplaced) && p.namespace == home: // the runtime, on its way into the container
		case p.namespace == home:
			return c, false
		default:
			c.Foreign, c.PID, c.Namespace = false, p.PID, p.namespace
			return c, true
		}
	}
	return c, c.Foreign || c.Unplaced
}

// owners remembers which mount namespaces have the host's owner.
type owners struct {
	host  mount.Owner
	known map[uint64]bool // by inode number
}

// of reports whether a namespace, by its inode number, has the host's owner. dir is the directory
// in procfs of a thread that is in it. An error says that this cannot be told, as where the thread
// is in another namespace by now.
func (o *owners) of(proc procfs, dir string, inode uint64) (bool, error) {
	if owned, known := o.known[inode]; known {
		return owned, nil
	}
	fd, err := proc.openNamespace(dir)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if !mount.IsInode(fd, inode) {
		return false, errEnded
	}
	owned, err := o.host.Owns(fd)
	if err == nil {
		o.known[inode] = owned
	}
	return owned, err
}
