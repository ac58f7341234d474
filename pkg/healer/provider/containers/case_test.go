package containers

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/mounts"
)

const (
	staged    = "/k/staged"
	published = "/k/pods/a/mount"
	// contained is where a container of the pod has the volume, seen from outside.
	contained = "/proc/77/root/data"
)

var (
	disk        = facts.Dev{Major: 8, Minor: 16}
	identity    = facts.Identity{FilesystemUUID: "uuid", Serial: "serial", Size: 1 << 30}
	placeholder = facts.AttrReadOnly | facts.AttrNoSUID | facts.AttrNoDev | facts.AttrNoExec | facts.AttrNoSymFollow
)

// kernel is a host that records plans. Its other operations are never called.
type kernel struct {
	mounts.Host
	plans []facts.ContainerSwap
	errs  map[int]error // by container
	// old is true for one that cannot put a mount beneath another.
	old bool
}

func (k *kernel) CanReplace() bool { return !k.old }
func (*kernel) CanCover() bool     { return true }

func (k *kernel) ReplaceInContainers(_ context.Context, plans []facts.ContainerSwap) (errs []error) {
	k.plans = append(k.plans, plans...)
	for _, p := range plans {
		errs = append(errs, k.errs[p.Container.PID])
	}
	return errs
}

// examine asks the generic provider first, as the engine does.
func examine(t *testing.T, k *kernel, s Scope, c healer.Case) healer.Finding {
	t.Helper()
	onHost, err := mounts.New(k).Examine(c)
	if err != nil {
		t.Fatal(err)
	}
	c.Found = onHost.Conditions
	f, err := New(k, s).Examine(c)
	if err != nil || !f.Mine {
		t.Fatalf("mine: %v, %v", f.Mine, err)
	}
	return f
}

// healthy is an ext4 volume, staged and published, as recorded.
func healthy() healer.Case {
	c := healer.Case{
		Volume: healer.Volume{ID: "v", Path: published, StagingPath: staged}, Driver: "d", BootID: "boot",
		Superblocks: map[facts.Dev]facts.Superblock{disk: {
			Dev: disk, FSType: "ext4", Source: "/dev/sdb", Kind: facts.KindDirectory,
			Device: &facts.BlockDevice{Dev: disk, Name: "sdb", Identity: identity}, Answer: facts.Answer{Asked: true},
		}},
		Record: &healer.Record{
			Version: healer.RecordVersion, Driver: "d", VolumeID: "v", BootID: "boot", FSType: "ext4", Source: "/dev/sdb", Identity: identity,
			MountPoints: []healer.MountPointRecord{
				{Role: healer.RoleTarget, Path: published, Root: "/sub", Attr: facts.AttrNoExec, Dev: disk},
				{Role: healer.RoleStaging, Path: staged, Root: "/", Dev: disk},
			},
		},
		MountPoints: []healer.MountPoint{
			{Role: healer.RoleTarget, Path: published, Named: true, PodUID: "a", Stack: []facts.Mount{mountAt(published, "/sub", facts.AttrNoExec)}},
			{Role: healer.RoleStaging, Path: staged, Stack: []facts.Mount{mountAt(staged, "/", 0)}},
		},
	}
	for i := range c.MountPoints {
		p := &c.MountPoints[i]
		p.Want = c.Record.MountPoint(p.Path)
		p.Inspect = facts.PathInfo{Inspected: true, Kind: facts.KindDirectory, VolData: &facts.VolData{DriverName: "d", VolumeHandle: "v"}}
	}
	return c
}

func mountAt(path, root string, attr facts.Attr) facts.Mount {
	return facts.Mount{ID: 7, OldID: 7, Dev: disk, Root: root, Path: path, Attr: attr, FSType: "ext4", Source: "/dev/sdb"}
}

// with returns a builder of the healthy case with changes.
func with(changes ...func(*healer.Case)) func() healer.Case {
	return func() healer.Case {
		c := healthy()
		for _, change := range changes {
			change(&c)
		}
		return c
	}
}

func unrecorded(c *healer.Case) {
	c.Record = nil
	for i := range c.MountPoints {
		c.MountPoints[i].Want = nil
	}
}

func lost(c *healer.Case)        { c.MountPoints[0].Stack = nil }
func stagingLost(c *healer.Case) { c.MountPoints[1].Stack = nil }

// previously is the filesystem instance of a daemon that has ended, and renewed that
// of the one which came after it.
var previously, renewed = facts.Dev{Minor: 50}, facts.Dev{Minor: 60}

// outliving is a FUSE volume, recorded with its previous instance, that the driver
// has staged anew while the pod's mount point still shows the dead one.
func outliving(c *healer.Case) {
	c.Record.FSType, c.Record.Source, c.Record.Identity = "fuse.x", "src", facts.Identity{}
	c.Superblocks = map[facts.Dev]facts.Superblock{
		previously: {Dev: previously, FSType: "fuse.x", Source: "src", Answer: facts.Answer{Asked: true, Op: "statx", Errno: syscall.ENOTCONN}},
		renewed:    {Dev: renewed, FSType: "fuse.x", Source: "src", Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true}},
	}
	for i := range c.MountPoints {
		m := &c.MountPoints[i].Stack[0]
		m.Dev, m.FSType, m.Source = previously, "fuse.x", "src"
		c.Record.MountPoints[i].Dev = previously
	}
	c.MountPoints[1].Stack[0].Dev, c.MountPoints[1].Stack[0].ID, c.MountPoints[1].Stack[0].OldID = renewed, 8, 8
}

// of changes one of several superblocks.
func of(dev facts.Dev, change func(*facts.Superblock)) func(*healer.Case) {
	return func(c *healer.Case) {
		sb := c.Superblocks[dev]
		change(&sb)
		c.Superblocks[dev] = sb
	}
}

func errno(e syscall.Errno) func(*facts.Superblock) {
	return func(sb *facts.Superblock) { sb.Answer = facts.Answer{Asked: true, Op: "statx", Errno: e} }
}

// healedOnHost is a volume that is healed on the host, while a container still has the
// previous instance of it.
func healedOnHost(c *healer.Case) {
	outliving(c)
	c.MountPoints[0].Stack[0].Dev = renewed
	delete(c.Superblocks, previously)
	c.MountPoints = append(c.MountPoints, healer.MountPoint{
		Role: healer.RoleContainer, Path: contained, PodUID: "a", Inspect: facts.PathInfo{Inspected: true},
		InContainer: &healer.InContainer{
			ContainerMount: facts.ContainerMount{
				Container: facts.Container{Workload: facts.Workload{PodUID: "a"}, PID: 77, Namespace: 4026}, Mount: facts.Mount{
					ID: 70, OldID: 70, Dev: previously, Root: "/sub", Path: "/data", FSType: "fuse.x", Source: "src", Attr: facts.AttrNoSUID,
				},
			},
			Attr:  facts.AttrNoSUID,
			Probe: facts.ContainerProbe{Errno: syscall.ENOTCONN}, Proof: "the record says so",
		},
	})
	inContainer(func(*healer.InContainer) {})(c)
}

// inContainer changes what the container has.
func inContainer(change func(*healer.InContainer)) func(*healer.Case) {
	return func(c *healer.Case) {
		p := &c.MountPoints[2]
		change(p.InContainer)
		p.Stack = append([]facts.Mount{p.InContainer.Mount}, p.InContainer.Below...)
	}
}

func has(change func(*facts.Mount)) func(*healer.Case) {
	return inContainer(func(in *healer.InContainer) { change(&in.Mount) })
}

// unfinished is what an interrupted replacement left in the container.
func unfinished(in *healer.InContainer) facts.Mount {
	m := in.Mount
	m.ID, m.OldID, m.Dev, m.Attr = 71, 71, renewed, m.Attr|facts.AttrReadOnly|facts.AttrNoSymFollow
	return m
}

func unfinishedAlone(in *healer.InContainer) { in.Mount, in.Probe.Errno = unfinished(in), 0 }
func unfinishedBelow(in *healer.InContainer) { in.Below = []facts.Mount{unfinished(in)} }

// stackedOnDead is one that stands on the dead mount: something that came on top of the
// dead one while ours was put beneath it is gone again.
func stackedOnDead(in *healer.InContainer) {
	in.Below = []facts.Mount{in.Mount}
	unfinishedAlone(in)
}

var errRevalidate = errors.New("not wanted any more")
