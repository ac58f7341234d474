package providertest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// odd are changes that make unusual cases of another one. A provider may say of them
// what it likes, as long as it keeps the contract.
var odd = map[string]Change{
	"block":                  func(c *healer.Case) { c.Block = true },
	"no evidence":            func(c *healer.Case) { c.Evidence = nil },
	"no record":              Unrecorded(),
	"record of another boot": func(c *healer.Case) { c.BootID = "another" },
	"empty record": func(c *healer.Case) {
		Unrecorded()(c)
		c.Record = &healer.Record{}
	},
	"another provider found all of it unusable": func(c *healer.Case) {
		for _, p := range c.MountPoints {
			c.Found = append(c.Found, healer.Condition{Status: healer.DataLoss, Reason: "Odd", MountPoint: p.Path, Superblock: p.Dev(), Message: "m", Advice: "a"})
		}
	},

	// Names that may come from an attacker: on a disk, and those that a daemon chooses.
	"names that fool a reader": func(c *healer.Case) {
		const name = "x\n\x1b[2Jhealthy."
		eachSuperblock(c, func(sb *healer.Superblock) {
			sb.FSType, sb.Source = "fuse."+name, name
			sb.Errors = &facts.FilesystemErrors{Count: 1, LastTime: longAgo, LastFunction: name}
		})
	},
	"names that fool a reader, shut down": func(c *healer.Case) {
		eachSuperblock(c, func(sb *healer.Superblock) { sb.FSType, sb.Shutdown = "fuse.x\n", true })
	},
	"names that fool a reader, refused": func(c *healer.Case) {
		eachSuperblock(c, func(sb *healer.Superblock) { sb.FSType, sb.Answer = "x\n", denied })
	},
	"a source that fools a reader": func(c *healer.Case) {
		const name = "../../x\n\x1b[2Jhealthy."
		eachSuperblock(c, func(sb *healer.Superblock) { sb.Source = name })
		eachMountPoint(c, func(p *healer.MountPoint) {
			for i := range p.Stack {
				p.Stack[i].Source = name
			}
		})
	},

	"empty superblocks":   Superblock(func(sb *healer.Superblock) { *sb = healer.Superblock{} }),
	"an upper of its own": Superblock(func(sb *healer.Superblock) { sb.Upper = &healer.Superblock{Shutdown: true} }),
	"nothing left": Superblock(func(sb *healer.Superblock) {
		sb.Space = facts.Space{Blocks: math.MaxUint64, Files: math.MaxUint64}
	}),
	"errors of an unknown time": Superblock(func(sb *healer.Superblock) {
		sb.Errors = &facts.FilesystemErrors{Count: math.MaxUint64}
	}),
	"errors with a time far ahead": func(c *healer.Case) {
		Unrecorded()(c)
		eachSuperblock(c, func(sb *healer.Superblock) {
			sb.Errors = &facts.FilesystemErrors{Count: 1, LastTime: time.Unix(math.MaxUint32, 0)}
		})
	},

	"not asked":                 answer(facts.Answer{}),
	"silent":                    answer(facts.Answer{Asked: true, TimedOut: true}),
	"stuck":                     answer(facts.Answer{Asked: true, TimedOut: true, Stuck: true}),
	"ENOTCONN":                  answer(facts.Answer{Asked: true, Op: "statx", Errno: syscall.ENOTCONN}),
	"an unknown errno":          answer(facts.Answer{Asked: true, Errno: 4095}),
	"late for ever":             answer(facts.Answer{Asked: true, Late: math.MaxInt, Elapsed: math.MaxInt64}),
	"silent to a write":         answer(facts.Answer{Asked: true, TimedOut: true, Writing: true}),
	"frozen":                    answer(facts.Answer{Asked: true, Frozen: true}),
	"silent, in many functions": answer(facts.Answer{Asked: true, TimedOut: true, Waits: slices.Repeat([]string{"f"}, 1000)}),
	"a device that fails":       answer(facts.Answer{Asked: true, Op: facts.OpReadDevice, Errno: syscall.EIO}),
	"access denied":             answer(denied),
	"a write that fails":        write(facts.Write{Answer: facts.Answer{Asked: true, Op: "write", Errno: syscall.EIO}}),
	"a write to what is full":   write(facts.Write{Answer: facts.Answer{Asked: true, Op: "create", Errno: syscall.ENOSPC}, Unable: true}),
	"a write that is forbidden": write(facts.Write{Forbidden: "it is not wanted"}),

	"no device":   Superblock(func(sb *healer.Superblock) { sb.Device = nil }),
	"device gone": Superblock(func(sb *healer.Superblock) { sb.Device = &facts.BlockDevice{Missing: true} }),
	"a device of which nothing is known": Superblock(func(sb *healer.Superblock) {
		sb.Device = &facts.BlockDevice{Dev: sb.Dev}
	}),
	"a device with everything wrong": Superblock(func(sb *healer.Superblock) {
		sb.Opened = facts.OpenedDevice{Short: 1}
		sb.Device = &facts.BlockDevice{
			Dev: sb.Dev, ReadOnly: true, BackingFileGone: true, Mapping: &facts.Mapping{Suspended: true, Orphaned: true},
			DeadPaths: slices.Repeat([]string{strings.Repeat("x", 32) + " failed"}, 1000),
		}
	}),
}

// oddAlone leave nothing that could be sick, or nothing that a step could act on: they are not tried
// on sick cases.
var oddAlone = map[string]Change{
	"zero": func(c *healer.Case) { *c = healer.Case{} },
	"no record, no mounts": func(c *healer.Case) {
		Unrecorded()(c)
		eachMountPoint(c, func(p *healer.MountPoint) { p.Stack = nil })
	},
	"no superblocks": func(c *healer.Case) { c.Superblocks = nil },
	"no names at all": func(c *healer.Case) {
		c.Volume, c.Driver, c.BootID = healer.Volume{}, "", ""
		eachMountPoint(c, func(p *healer.MountPoint) {
			for i := range p.Stack {
				p.Stack[i] = facts.Mount{}
			}
		})
	},
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

var (
	longAgo = time.Unix(1e9, 0)
	denied  = facts.Answer{Asked: true, Op: "open", Errno: syscall.EACCES}
)

func answer(a facts.Answer) Change {
	return func(c *healer.Case) { eachSuperblock(c, func(sb *healer.Superblock) { sb.Answer = a }) }
}

func write(w facts.Write) Change {
	return func(c *healer.Case) { eachSuperblock(c, func(sb *healer.Superblock) { sb.Write = w }) }
}

func eachMountPoint(c *healer.Case, change func(*healer.MountPoint)) {
	for i := range c.MountPoints {
		change(&c.MountPoints[i])
	}
}

func eachSuperblock(c *healer.Case, change func(*healer.Superblock)) {
	for dev, sb := range c.Superblocks {
		change(&sb)
		c.Superblocks[dev] = sb
	}
}
