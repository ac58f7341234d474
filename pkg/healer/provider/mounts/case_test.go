package mounts

import (
	"context"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

// idle is a host whose steps must not run.
type idle struct{ t *testing.T }

func (h idle) Place(context.Context, facts.PlacePlan, func(context.Context) error) error {
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

// The changes that several tests make.

// placeholderAlone is a rebind killed between its halves.
func placeholderAlone(c *healer.Case) {
	c.MountPoints[0].Stack = []facts.Mount{cases.Mount(cases.Published, "/sub", cases.Placeholder)}
}

// placeholderOnTop is a placeholder on top of the driver's own mount, which came first.
func placeholderOnTop(c *healer.Case) {
	c.MountPoints[0].Stack = append([]facts.Mount{cases.Mount(cases.Published, "/sub", cases.Placeholder)}, c.MountPoints[0].Stack...)
}

func attr(mountPoint int, a facts.Attr) cases.Change {
	return func(c *healer.Case) { c.MountPoints[mountPoint].Stack[0].Attr = a }
}

func superblock(change func(*healer.Superblock)) cases.Change {
	return func(c *healer.Case) {
		sb := c.Superblocks[cases.Disk]
		change(&sb)
		c.Superblocks[cases.Disk] = sb
	}
}

func recorded(mountPoint int, change func(*healer.MountPointRecord)) cases.Change {
	return func(c *healer.Case) { change(&c.Record.MountPoints[mountPoint]) }
}

// top changes the topmost mount of a mount point.
func top(mountPoint int, change func(*facts.Mount)) cases.Change {
	return func(c *healer.Case) { change(&c.MountPoints[mountPoint].Stack[0]) }
}

// under puts a mount beneath what stands at the target.
func under(change func(*facts.Mount)) cases.Change {
	return func(c *healer.Case) {
		m := c.MountPoints[0].Stack[0]
		m.ID, m.OldID, m.Dev = 9, 9, cases.Renewed
		change(&m)
		c.MountPoints[0].Stack = append(c.MountPoints[0].Stack, m)
	}
}
