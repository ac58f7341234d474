// Package cases has the volumes that the tests of providers change: a healthy one, one that the
// driver staged anew beneath its pod, and the same on NFS.
package cases

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The paths of the volume; pod a has it published.
const (
	Staged    = "/k/staged"
	Published = "/k/pods/a/mount"
)

// Its superblocks.
var (
	Disk = facts.Dev{Major: 8, Minor: 16}
	// Previously is the filesystem instance of a daemon that has ended.
	Previously = facts.Dev{Minor: 50}
	// Renewed is that of the daemon which came after it.
	Renewed = facts.Dev{Minor: 60}
	// Export is the superblock of an NFS export, which all its mounts share.
	Export = facts.Dev{Minor: 44}
)

// Placeholder are the attributes of what stands at a mount point in the middle of a step.
const Placeholder = facts.AttrReadOnly | facts.AttrNoSUID | facts.AttrNoDev | facts.AttrNoExec | facts.AttrNoSymFollow

// A Change makes another volume of one.
type Change = func(*healer.Case)

// Healthy is an ext4 volume, staged and published, as recorded.
func Healthy() healer.Case {
	identity := facts.Identity{FilesystemUUID: "uuid", Serial: "serial", Size: 1 << 30}
	c := healer.Case{
		Volume: healer.Volume{ID: "v", Path: Published, StagingPath: Staged}, Driver: "d", BootID: "boot",
		Superblocks: map[facts.Dev]healer.Superblock{Disk: {
			Dev: Disk, FSType: "ext4", Source: "/dev/sdb", Kind: facts.KindDirectory,
			Device: &facts.BlockDevice{Dev: Disk, Name: "sdb", Identity: identity}, Answer: facts.Answer{Asked: true},
		}},
		Record: &healer.Record{
			Version: healer.RecordVersion, Driver: "d", VolumeID: "v", BootID: "boot", FSType: "ext4", Source: "/dev/sdb", Identity: identity,
			MountPoints: []healer.MountPointRecord{
				{Role: healer.RoleTarget, Path: Published, Root: "/sub", Attr: facts.AttrNoExec, Dev: Disk},
				{Role: healer.RoleStaging, Path: Staged, Root: "/", Dev: Disk},
			},
		},
		MountPoints: []healer.MountPoint{
			{Role: healer.RoleTarget, Path: Published, Named: true, PodUID: "a", Stack: []facts.Mount{Mount(Published, "/sub", facts.AttrNoExec)}},
			{Role: healer.RoleStaging, Path: Staged, Stack: []facts.Mount{Mount(Staged, "/", 0)}},
		},
	}
	for i := range c.MountPoints {
		p := &c.MountPoints[i]
		p.Want = c.Record.MountPoint(p.Path)
		p.Inspect = facts.PathInfo{Inspected: true, Kind: facts.KindDirectory, VolData: &facts.VolData{DriverName: "d", VolumeHandle: "v"}}
	}
	return c
}

// Mount is a mount of the healthy volume.
func Mount(path, root string, attr facts.Attr) facts.Mount {
	return facts.Mount{ID: 7, OldID: 7, Dev: Disk, Root: root, Path: path, Attr: attr, FSType: "ext4", Source: "/dev/sdb"}
}

// With returns a builder of the healthy case with changes.
func With(changes ...Change) func() healer.Case {
	return func() healer.Case {
		c := Healthy()
		for _, change := range changes {
			change(&c)
		}
		return c
	}
}

// Unrecorded is a volume that was never seen healthy.
func Unrecorded(c *healer.Case) {
	c.Record = nil
	for i := range c.MountPoints {
		c.MountPoints[i].Want = nil
	}
}

// Lost has nothing mounted at the target.
func Lost(c *healer.Case) { c.MountPoints[0].Stack = nil }

// StagingLost has nothing staged.
func StagingLost(c *healer.Case) { c.MountPoints[1].Stack = nil }

// Outliving is a FUSE volume, recorded with its previous instance, that the driver
// has staged anew while the pod's mount point still shows the dead one.
func Outliving(c *healer.Case) {
	c.Record.FSType, c.Record.Source, c.Record.Identity = "fuse.x", "src", facts.Identity{}
	c.Superblocks = map[facts.Dev]healer.Superblock{
		Previously: {Dev: Previously, FSType: "fuse.x", Source: "src", Answer: Answered(syscall.ENOTCONN)},
		Renewed:    {Dev: Renewed, FSType: "fuse.x", Source: "src", Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true}},
	}
	for i := range c.MountPoints {
		m := &c.MountPoints[i].Stack[0]
		m.Dev, m.FSType, m.Source = Previously, "fuse.x", "src"
		c.Record.MountPoints[i].Dev = Previously
	}
	c.MountPoints[1].Stack[0].Dev, c.MountPoints[1].Stack[0].ID, c.MountPoints[1].Stack[0].OldID = Renewed, 8, 8
}

// NFSAnew is an NFS volume that the driver has staged anew while the pod's mount point is
// stale, of one superblock.
func NFSAnew(c *healer.Case) {
	c.Record.FSType, c.Record.Source, c.Record.Identity = "nfs4", "srv:/v", facts.Identity{}
	c.Superblocks = map[facts.Dev]healer.Superblock{
		Export: {Dev: Export, FSType: "nfs4", Source: "srv:/v", Kind: facts.KindDirectory, Answer: Answered(0)},
	}
	for i := range c.MountPoints {
		m := &c.MountPoints[i].Stack[0]
		m.Dev, m.FSType, m.Source, m.Root = Export, "nfs4", "srv:/v", "/"
		c.Record.MountPoints[i].Dev, c.Record.MountPoints[i].Root, c.Record.MountPoints[i].Source = Export, "/", "srv:/v"
	}
	c.MountPoints[1].Stack[0].ID, c.MountPoints[1].Stack[0].OldID = 8, 8
	c.MountPoints[0].Own, c.MountPoints[1].Own = Answered(syscall.ESTALE), Answered(0)
}

// Answered is an answer to a probe.
func Answered(e syscall.Errno) facts.Answer { return facts.Answer{Asked: true, Op: "statx", Errno: e} }

// Errno has a superblock answer with an errno.
func Errno(e syscall.Errno) func(*healer.Superblock) {
	return func(sb *healer.Superblock) { sb.Answer = Answered(e) }
}

// Of changes one of several superblocks.
func Of(dev facts.Dev, change func(*healer.Superblock)) Change {
	return func(c *healer.Case) {
		sb := c.Superblocks[dev]
		change(&sb)
		c.Superblocks[dev] = sb
	}
}

// Own changes what a mount point's own mount answered.
func Own(mountPoint int, a facts.Answer) Change {
	return func(c *healer.Case) { c.MountPoints[mountPoint].Own = a }
}

// ErrRevalidate is what a step gets that is not wanted any more.
var ErrRevalidate = errors.New("not wanted any more")

// Willing lets a step go on.
func Willing(context.Context) error { return nil }

// WantRefused fails unless a step is refused for a reason, or is not if that is empty.
func WantRefused(t *testing.T, s healer.Step, why string) {
	t.Helper()
	if (s.Refused == "") != (why == "") || !strings.Contains(s.Refused, why) {
		t.Errorf("%s is refused with %q, want %q", s.Name, s.Refused, why)
	}
}

// WantConditions compares what was found with "Reason! role: part of the message", with a "!" for
// acute.
func WantConditions(t *testing.T, c healer.Case, found []healer.Condition, want []string) {
	t.Helper()
	ok := len(found) == len(want)
	for i, cond := range found {
		head := string(cond.Reason)
		if cond.Acute {
			head += "!"
		}
		for _, p := range c.MountPoints {
			if p.Path == cond.MountPoint {
				head += " " + string(p.Role)
			}
		}
		if i < len(want) {
			wantHead, part, _ := strings.Cut(want[i], ":")
			ok = ok && head == wantHead && strings.Contains(cond.Message, strings.TrimSpace(part))
		}
	}
	if !ok {
		t.Errorf("got %+v\nwant %q", found, want)
	}
}
