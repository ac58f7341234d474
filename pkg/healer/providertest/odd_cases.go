package providertest

import (
	"fmt"
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

var oddCases = map[string]Change{
	"zero":                   func(c *healer.Case) { *c = healer.Case{} },
	"block":                  func(c *healer.Case) { c.Block = true },
	"no evidence":            func(c *healer.Case) { c.Evidence = nil },
	"no record":              Unrecorded(),
	"record of another boot": func(c *healer.Case) { c.BootID = "another" },
	"no record, no mounts": func(c *healer.Case) {
		Unrecorded()(c)
		eachMountPoint(c, func(p *healer.MountPoint) { p.Stack = nil })
	},
	"empty record": func(c *healer.Case) {
		Unrecorded()(c)
		c.Record = &healer.Record{}
	},
	"another provider found all of it unusable": func(c *healer.Case) {
		for _, p := range c.MountPoints {
			c.Found = append(c.Found, healer.Condition{Status: healer.DataLoss, Reason: "Odd", MountPoint: p.Path, Superblock: p.Dev(), Message: "m", Advice: "a"})
		}
	},
}

var oddMountPoints = map[string]Change{
	"no mount points":             func(c *healer.Case) { c.MountPoints = nil },
	"mount points without a path": func(c *healer.Case) { eachMountPoint(c, func(p *healer.MountPoint) { *p = healer.MountPoint{} }) },
	"nothing mounted":             func(c *healer.Case) { eachMountPoint(c, func(p *healer.MountPoint) { p.Stack = nil }) },
	"not inspected":               func(c *healer.Case) { eachMountPoint(c, func(p *healer.MountPoint) { p.Inspect = facts.PathInfo{} }) },
	"unknown roles":               func(c *healer.Case) { eachMountPoint(c, func(p *healer.MountPoint) { p.Role = "odd" }) },
	"huge stacks": func(c *healer.Case) {
		eachMountPoint(c, func(p *healer.MountPoint) { p.Stack = slices.Repeat(p.Stack, 1000) })
	},
	"many mount points": func(c *healer.Case) {
		for i := range 100 {
			for _, p := range c.MountPoints[:min(2, len(c.MountPoints))] {
				p.Path = fmt.Sprint(p.Path, i)
				p.Stack = slices.Clone(p.Stack)
				c.MountPoints = append(c.MountPoints, p)
			}
		}
	},
}

// oddNames may come from an attacker: names on a disk, and those that a daemon chooses.
var oddNames = map[string]Change{
	"names that fool a reader": func(c *healer.Case) {
		const name = "x\n\x1b[2Jhealthy."
		eachSuperblock(c, func(sb *facts.Superblock) {
			sb.FSType, sb.Source = "fuse."+name, name
			sb.Errors = &facts.FilesystemErrors{Count: 1, LastTime: longAgo, LastFunction: name}
		})
	},
	"names that fool a reader, shut down": func(c *healer.Case) {
		eachSuperblock(c, func(sb *facts.Superblock) { sb.FSType, sb.Shutdown = "fuse.x\n", true })
	},
	"names that fool a reader, refused": func(c *healer.Case) {
		eachSuperblock(c, func(sb *facts.Superblock) { sb.FSType, sb.Answer = "x\n", denied })
	},
	"a source that fools a reader": func(c *healer.Case) {
		const name = "../../x\n\x1b[2Jhealthy."
		eachSuperblock(c, func(sb *facts.Superblock) { sb.Source = name })
		eachMountPoint(c, func(p *healer.MountPoint) {
			for i := range p.Stack {
				p.Stack[i].Source = name
			}
		})
	},
	"no names at all": func(c *healer.Case) {
		c.Volume, c.Driver, c.BootID = healer.Volume{}, "", ""
		eachMountPoint(c, func(p *healer.MountPoint) {
			for i := range p.Stack {
				p.Stack[i] = facts.Mount{}
			}
		})
	},
}
