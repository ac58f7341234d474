package host

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// DeviceHolders lists what the kernel has on top of a block device, its
// partitions and, for a partition, its disk. The processes that have the device
// open are among Holders.Processes.
type DeviceHolders struct {
	// Above are the names of the devices made of it: dm-0, md1, bcache0.
	Above []string
	// Loops are other loop devices on the same device, or on the same backing
	// file by its name.
	Loops []string
	Claim Claim
}

// Claim is what an exclusive open of the device showed.
type Claim string

const (
	// ClaimUnknown means not asked, or no answer.
	ClaimUnknown Claim = ""
	// ClaimNone means that it is not claimed. Plain openers, loop devices on
	// it and whatever uses the same storage through another device claim nothing.
	ClaimNone Claim = "unclaimed"
	// ClaimTaken means that it is claimed: by a filesystem, also one that was unmounted
	// lazily, a device made of it, swap, or a program that opened it exclusively.
	ClaimTaken Claim = "claimed"
)

// claimOf asks whether a device is claimed.
func (n *Node) claimOf(ctx context.Context, dev Dev) Claim {
	name := ""
	if !dev.Zero() {
		name = n.cfg.Sysfs.Name(dev)
	}
	if name == "" {
		return ClaimUnknown
	}
	call, cancel := context.WithTimeout(ctx, n.cfg.ProbeTimeout)
	defer cancel()
	var a workerops.ExclusiveAnswer
	err := n.probes.serialize(call, storage{dev: dev}, func() (err error) {
		a, err = worker.Call(call, n.cfg.Pool, workerops.Exclusive, workerops.ExclusiveQuery{Device: "/dev/" + name, Number: workerops.Number(dev)})
		return err
	})
	switch {
	case err != nil:
		return ClaimUnknown
	case a.Errno == 0:
		return ClaimNone
	case a.Errno == syscall.EBUSY:
		return ClaimTaken
	default:
		return ClaimUnknown
	}
}

// holdersInKernel adds the holders that sysfs tells, which have no process.
func (n *Node) holdersInKernel(table Table, a Holdable, h *Holders) {
	nodes := n.cfg.Sysfs.nodesOf(a.Device)
	at := map[location]bool{}
	for _, name := range nodes {
		at[locate(table, "/dev/"+name)] = true
		h.Device.Above = append(h.Device.Above, n.cfg.Sysfs.above(name)...)
	}
	loops := n.cfg.Sysfs.loops()
	// Two loop devices on one file do not claim it from each other.
	if own := loops[n.cfg.Sysfs.Name(a.Device)]; own != nil {
		at[locateLoop(table, own)] = true
	}
	for name, l := range loops {
		where := locateLoop(table, l)
		if at[where] && !slices.Contains(nodes, name) {
			h.Device.Loops = append(h.Device.Loops, name)
		}
		if !a.Superblock.Zero() && where.dev == a.Superblock {
			h.Loops = append(h.Loops, name)
		}
	}
	for _, names := range []*[]string{&h.Device.Above, &h.Device.Loops, &h.Loops} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
}

// location is a file by superblock and path in it: one file may have a path at
// each mount. Texts of the kernel are compared, so the same path in another
// mount namespace counts as the same file, and a hard link does not. To compare
// inodes would mean to ask the filesystem: LOOP_GET_STATUS64 stats the backing
// file, and does not return while its NFS server or FUSE daemon does not answer.
type location struct {
	dev     Dev
	path    string
	deleted bool
}

func locate(table Table, p string) location {
	m, found := table.ParentMount(p)
	if !found {
		return location{path: p}
	}
	return location{dev: m.Dev, path: path.Join(m.Root, strings.TrimPrefix(p, strings.TrimSuffix(m.Path, "/")))}
}

func locateLoop(table Table, l *Loop) location {
	where := locate(table, l.BackingFile)
	where.deleted = l.Deleted
	return where
}

// nodesOf returns the names of a device and its partitions, or of a partition and its
// disk: a holder of one keeps the other in use.
func (s Sysfs) nodesOf(dev Dev) []string {
	name := s.Name(dev)
	if dev.Zero() || name == "" {
		return nil
	}
	dir, err := follow(filepath.Join(string(s), "dev/block", dev.String()))
	if err != nil {
		return []string{name}
	}
	if exists(filepath.Join(dir, "partition")) {
		return []string{name, slashed(filepath.Base(filepath.Dir(dir)))}
	}
	names := []string{name}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if exists(filepath.Join(dir, e.Name(), "partition")) {
			names = append(names, slashed(e.Name()))
		}
	}
	return names
}

// slashed turns sysfs's "cciss!c0d0" into the name below /dev.
func slashed(name string) string { return strings.ReplaceAll(name, "!", "/") }

// above returns the names of the devices that are made of a device.
func (s Sysfs) above(name string) (names []string) {
	entries, _ := os.ReadDir(filepath.Join(string(s), "class/block", strings.ReplaceAll(name, "/", "!"), "holders"))
	for _, e := range entries {
		names = append(names, slashed(e.Name()))
	}
	return names
}

// loops returns the loop devices that have a backing file.
func (s Sysfs) loops() map[string]*Loop {
	found := map[string]*Loop{}
	entries, _ := os.ReadDir(filepath.Join(string(s), "block"))
	for _, e := range entries {
		if l := loopOf(filepath.Join(string(s), "block", e.Name())); l != nil {
			found[e.Name()] = l
		}
	}
	return found
}
