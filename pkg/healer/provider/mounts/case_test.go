package mounts

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	staged    = "/k/staged"
	published = "/k/pods/a/mount"
)

var (
	disk        = facts.Dev{Major: 8, Minor: 16}
	identity    = facts.Identity{FilesystemUUID: "uuid", Serial: "serial", Size: 1 << 30}
	placeholder = facts.AttrReadOnly | facts.AttrNoSUID | facts.AttrNoDev | facts.AttrNoExec | facts.AttrNoSymFollow
)

// idle is a host whose steps must not run.
type idle struct{ t *testing.T }

func (h idle) Rebind(context.Context, facts.RebindPlan, func(context.Context) error) error {
	return h.touched()
}

func (h idle) Finish(context.Context, facts.RebindPlan, facts.Mount, func(context.Context) error) error {
	return h.touched()
}

func (h idle) Replace(context.Context, facts.RebindPlan, facts.Mount, func(context.Context) error) error {
	return h.touched()
}

func (h idle) Cover(context.Context, facts.RebindPlan, func(context.Context) error) error {
	return h.touched()
}

func (h idle) UnmountTop(context.Context, facts.UnmountPlan, func(context.Context) error) error {
	return h.touched()
}

func (idle) CanReplace() bool { return true }

func (idle) CanCover() bool { return true }

func (h idle) touched() error {
	h.t.Error("Examine touched the host")
	return nil
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
			{Role: healer.RoleTarget, Path: published, Named: true, PodUID: "a", Stack: []facts.Mount{mount(published, "/sub", facts.AttrNoExec)}},
			{Role: healer.RoleStaging, Path: staged, Stack: []facts.Mount{mount(staged, "/", 0)}},
		},
	}
	for i := range c.MountPoints {
		p := &c.MountPoints[i]
		p.Want = c.Record.MountPoint(p.Path)
		p.Inspect = facts.PathInfo{Inspected: true, Kind: facts.KindDirectory, VolData: &facts.VolData{DriverName: "d", VolumeHandle: "v"}}
	}
	return c
}

func mount(path, root string, attr facts.Attr) facts.Mount {
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

// The changes that several tests make.

func unrecorded(c *healer.Case) {
	c.Record = nil
	for i := range c.MountPoints {
		c.MountPoints[i].Want = nil
	}
}

func lost(c *healer.Case)        { c.MountPoints[0].Stack = nil }
func stagingLost(c *healer.Case) { c.MountPoints[1].Stack = nil }

// placeholderAlone is a rebind killed between its halves.
func placeholderAlone(c *healer.Case) {
	c.MountPoints[0].Stack = []facts.Mount{mount(published, "/sub", placeholder)}
}

// placeholderOnTop is a placeholder on top of the driver's own mount, which came first.
func placeholderOnTop(c *healer.Case) {
	c.MountPoints[0].Stack = append([]facts.Mount{mount(published, "/sub", placeholder)}, c.MountPoints[0].Stack...)
}

func attr(mountPoint int, a facts.Attr) func(*healer.Case) {
	return func(c *healer.Case) { c.MountPoints[mountPoint].Stack[0].Attr = a }
}

func superblock(change func(*facts.Superblock)) func(*healer.Case) {
	return func(c *healer.Case) {
		sb := c.Superblocks[disk]
		change(&sb)
		c.Superblocks[disk] = sb
	}
}

func recorded(mountPoint int, change func(*healer.MountPointRecord)) func(*healer.Case) {
	return func(c *healer.Case) { change(&c.Record.MountPoints[mountPoint]) }
}

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

// top changes the topmost mount of a mount point.
func top(mountPoint int, change func(*facts.Mount)) func(*healer.Case) {
	return func(c *healer.Case) { change(&c.MountPoints[mountPoint].Stack[0]) }
}

// under puts a mount beneath what stands at the target.
func under(change func(*facts.Mount)) func(*healer.Case) {
	return func(c *healer.Case) {
		m := c.MountPoints[0].Stack[0]
		m.ID, m.OldID, m.Dev = 9, 9, renewed
		change(&m)
		c.MountPoints[0].Stack = append(c.MountPoints[0].Stack, m)
	}
}

var errRevalidate = errors.New("not wanted any more")

func willing(context.Context) error { return nil }
