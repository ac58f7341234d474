package host

import (
	"context"
	"slices"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// Holdable is a superblock and the block device below it, or one of the two.
type Holdable struct {
	// Superblock is the number that the mount table shows; zero for a raw block
	// volume, whose node shares its superblock with all other nodes.
	Superblock Dev
	// Device is the block device; zero for a filesystem that has none.
	Device Dev
}

// Holders lists what keeps a superblock and its device in use, as far as mount
// tables, open files, working and root directories, sysfs and an exclusive open tell:
// workerops.HoldersAnswer says what is not looked for. It is what was seen a moment
// ago: enough for a message, never enough to act on.
type Holders struct {
	// Mounts are all mounts of the superblock, in every mount namespace with the
	// host's owner in which a process lives.
	Mounts []HeldMount
	// Processes hold a file or directory of the superblock, or the device.
	Processes []HeldBy
	// Loops are the loop devices on files of the superblock.
	Loops  []string
	Device DeviceHolders
	// Unknown counts open files, of any process, that lie on a mount which is in
	// no mount table that was read, as after a lazy umount, and whose superblock
	// the kernel does not tell: they may hold this one.
	Unknown int
	// Unseen counts processes that could not be examined.
	Unseen int
	// Cut is true when there may be more mounts and processes.
	Cut bool
}

// HeldMount is one mount in one mount namespace.
type HeldMount struct {
	// Namespace is the inode number of the mount namespace.
	Namespace uint64
	// Path is as seen from the root of that namespace.
	Path string
	// PID is a process in the namespace.
	PID int
	// PodUID and ContainerID are that process's; empty outside of pods.
	PodUID, ContainerID string
}

// HeldBy is one process.
type HeldBy struct {
	PID int
	// Command is the process's name for itself, and any bytes.
	Command string
	How     workerops.How
	// PodUID and ContainerID are empty outside of pods.
	PodUID, ContainerID string
}

// Holders finds what holds superblocks and devices. It touches no volume.
func (n *Node) Holders(ctx context.Context, asked []Holdable) (map[Holdable]Holders, error) {
	table, err := n.Mounts()
	if err != nil {
		return nil, err
	}
	var superblocks, devices []Dev
	for _, a := range asked {
		if !a.Superblock.Zero() {
			superblocks = append(superblocks, a.Superblock)
		}
		if !a.Device.Zero() {
			devices = append(devices, a.Device)
		}
	}
	scan, err := n.holders.share(ctx, n.probes, superblocks, devices, func(ctx context.Context) (workerops.HoldersAnswer, error) {
		// A scan costs the same for one volume as for all, and what makes one volume sick
		// often makes many.
		volumes, disks := n.volumesOf(table)
		return n.scanHolders(ctx, slices.Concat(superblocks, volumes), slices.Concat(devices, disks))
	})
	if err != nil {
		return nil, err
	}
	all := make(map[Holdable]Holders, len(asked))
	for _, a := range asked {
		h := holdersIn(scan, a)
		n.holdersInKernel(table, a, &h)
		if len(h.Mounts) == 0 {
			// A mounted filesystem has claimed its device: that is known.
			h.Device.Claim = n.claimOf(ctx, a.Device)
		}
		all[a] = h
	}
	return all, nil
}

// scanHolders has a worker walk over all processes.
func (n *Node) scanHolders(ctx context.Context, superblocks, devices []Dev) (workerops.HoldersAnswer, error) {
	call, cancel := context.WithTimeout(ctx, n.cfg.ProbeTimeout)
	defer cancel()
	q := workerops.HoldersQuery{Budget: n.cfg.ProbeTimeout / 2}
	for _, d := range superblocks {
		q.Superblocks = append(q.Superblocks, workerops.Number(d))
	}
	for _, d := range devices {
		q.Devices = append(q.Devices, workerops.Number(d))
	}
	return worker.Call(call, n.cfg.Pool, workerops.Holders, q)
}

// volumesOf returns the superblocks of all CSI volumes on the node, and those of
// them that have a block device's number.
func (n *Node) volumesOf(table Table) (superblocks, devices []Dev) {
	const limit = 1000
	seen := map[Dev]bool{}
	for _, m := range table.Mounts() {
		if seen[m.Dev] || m.MayBeNode() || len(superblocks) == limit {
			continue
		}
		if k := n.kubelet.Layout(m.Path).Kind; k == LayoutPod || k == LayoutStaging {
			seen[m.Dev] = true
			superblocks = append(superblocks, m.Dev)
			if m.Dev.Major != 0 {
				devices = append(devices, m.Dev)
			}
		}
	}
	return superblocks, devices
}

// holdersIn returns what a scan tells of one superblock and device.
func holdersIn(scan workerops.HoldersAnswer, a Holdable) Holders {
	h := Holders{Unknown: scan.Unknown, Unseen: scan.Unseen, Cut: scan.Cut}
	held := scan.Superblocks[workerops.Number(a.Superblock)]
	for _, m := range held.Mounts {
		w := workerops.WorkloadIn(m.Cgroup)
		h.Mounts = append(h.Mounts, HeldMount{Namespace: m.Namespace, Path: m.Path, PID: m.PID, PodUID: w.PodUID, ContainerID: w.ContainerID})
	}
	at := map[int]int{} // by process
	for _, p := range slices.Concat(held.Processes, scan.Devices[workerops.Number(a.Device)].Processes) {
		if i, twice := at[p.PID]; twice {
			h.Processes[i].How |= p.How
			continue
		}
		at[p.PID] = len(h.Processes)
		w := workerops.WorkloadIn(p.Cgroup)
		h.Processes = append(h.Processes, HeldBy{
			PID: p.PID, Command: p.Command, How: p.How, PodUID: w.PodUID, ContainerID: w.ContainerID,
		})
	}
	return h
}
