package mounts

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

const (
	staged    = "/k/staged"
	published = "/k/pods/a/mount"
)

var (
	disk     = host.Dev{Major: 8, Minor: 16}
	identity = host.Identity{FilesystemUUID: "uuid", Serial: "serial", Size: 1 << 30}
	interim  = host.AttrReadOnly | host.AttrNoSUID | host.AttrNoDev | host.AttrNoExec | host.AttrNoSymFollow
)

// idle is a host whose steps nobody may run.
type idle struct{ t *testing.T }

func (h idle) Rebind(context.Context, host.RebindPlan, func(context.Context) error) error {
	return h.touched()
}

func (h idle) Finish(context.Context, host.RebindPlan, host.Mount, func(context.Context) error) error {
	return h.touched()
}

func (h idle) TakeOff(context.Context, host.Mount, func(context.Context) error) error {
	return h.touched()
}

func (h idle) Replace(context.Context, host.RebindPlan, host.Mount, func(context.Context) error) error {
	return h.touched()
}

func (h idle) Cover(context.Context, host.RebindPlan, func(context.Context) error) error {
	return h.touched()
}

func (h idle) Uncover(context.Context, host.Mount, host.Mount, func(context.Context) error) error {
	return h.touched()
}

func (h idle) ReplaceInside(_ context.Context, plans []host.InsidePlan) []error {
	return slices.Repeat([]error{h.touched()}, len(plans))
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
		Superblocks: map[host.Dev]host.Superblock{disk: {
			Dev: disk, FSType: "ext4", Source: "/dev/sdb", Kind: host.KindDirectory,
			Device: &host.BlockDevice{Dev: disk, Name: "sdb", Identity: identity}, Answer: host.Answer{Asked: true},
		}},
		Record: &healer.Record{
			Version: healer.RecordVersion, Driver: "d", VolumeID: "v", BootID: "boot", FSType: "ext4", Source: "/dev/sdb", Identity: identity,
			Places: []healer.PlaceRecord{
				{Role: healer.Published, Path: published, Root: "/sub", Attr: host.AttrNoExec, Dev: disk},
				{Role: healer.Staged, Path: staged, Root: "/", Dev: disk},
			},
		},
		Places: []healer.Place{
			{Role: healer.Published, Path: published, Named: true, PodUID: "a", Stack: []host.Mount{mount(published, "/sub", host.AttrNoExec)}},
			{Role: healer.Staged, Path: staged, Stack: []host.Mount{mount(staged, "/", 0)}},
		},
	}
	for i := range c.Places {
		p := &c.Places[i]
		p.Want = c.Record.Place(p.Path)
		p.Look = host.PathLook{Looked: true, Kind: host.KindDirectory, VolData: &host.VolData{DriverName: "d", VolumeHandle: "v"}}
	}
	return c
}

func mount(path, root string, attr host.Attr) host.Mount {
	return host.Mount{ID: 7, OldID: 7, Dev: disk, Root: root, Path: path, Attr: attr, FSType: "ext4", Source: "/dev/sdb"}
}

// with gives a builder of the healthy case with changes.
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
	for i := range c.Places {
		c.Places[i].Want = nil
	}
}

func lost(c *healer.Case)        { c.Places[0].Stack = nil }
func stagingLost(c *healer.Case) { c.Places[1].Stack = nil }

// interimAlone is a rebind killed between its halves.
func interimAlone(c *healer.Case) {
	c.Places[0].Stack = []host.Mount{mount(published, "/sub", interim)}
}

// interimOnTop is an interim mount that a driver's own was quicker than.
func interimOnTop(c *healer.Case) {
	c.Places[0].Stack = append([]host.Mount{mount(published, "/sub", interim)}, c.Places[0].Stack...)
}

func attr(place int, a host.Attr) func(*healer.Case) {
	return func(c *healer.Case) { c.Places[place].Stack[0].Attr = a }
}

func superblock(change func(*host.Superblock)) func(*healer.Case) {
	return func(c *healer.Case) {
		sb := c.Superblocks[disk]
		change(&sb)
		c.Superblocks[disk] = sb
	}
}

func recorded(place int, change func(*healer.PlaceRecord)) func(*healer.Case) {
	return func(c *healer.Case) { change(&c.Record.Places[place]) }
}

// formerly is the filesystem instance of a daemon that has ended, and renewed that
// of the one which came after it.
var formerly, renewed = host.Dev{Minor: 50}, host.Dev{Minor: 60}

// outliving is a FUSE volume, recorded with its former instance, that the driver
// has staged anew while the pod's place still shows the dead one.
func outliving(c *healer.Case) {
	c.Record.FSType, c.Record.Source, c.Record.Identity = "fuse.x", "src", host.Identity{}
	c.Superblocks = map[host.Dev]host.Superblock{
		formerly: {Dev: formerly, FSType: "fuse.x", Source: "src", Answer: host.Answer{Asked: true, Op: "statx", Errno: syscall.ENOTCONN}},
		renewed:  {Dev: renewed, FSType: "fuse.x", Source: "src", Kind: host.KindDirectory, Answer: host.Answer{Asked: true}},
	}
	for i := range c.Places {
		m := &c.Places[i].Stack[0]
		m.Dev, m.FSType, m.Source = formerly, "fuse.x", "src"
		c.Record.Places[i].Dev = formerly
	}
	c.Places[1].Stack[0].Dev, c.Places[1].Stack[0].ID, c.Places[1].Stack[0].OldID = renewed, 8, 8
}

// of changes one of several superblocks.
func of(dev host.Dev, change func(*host.Superblock)) func(*healer.Case) {
	return func(c *healer.Case) {
		sb := c.Superblocks[dev]
		change(&sb)
		c.Superblocks[dev] = sb
	}
}

func errno(e syscall.Errno) func(*host.Superblock) {
	return func(sb *host.Superblock) { sb.Answer = host.Answer{Asked: true, Op: "statx", Errno: e} }
}

// top changes the topmost mount of a place.
func top(place int, change func(*host.Mount)) func(*healer.Case) {
	return func(c *healer.Case) { change(&c.Places[place].Stack[0]) }
}

// under puts a mount beneath what stands at the published place.
func under(change func(*host.Mount)) func(*healer.Case) {
	return func(c *healer.Case) {
		m := c.Places[0].Stack[0]
		m.ID, m.OldID, m.Dev = 9, 9, renewed
		change(&m)
		c.Places[0].Stack = append(c.Places[0].Stack, m)
	}
}

var errStill = errors.New("not wanted any more")
