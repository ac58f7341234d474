package providertest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// odd turns a healthy case into unusual ones. A provider may say of them what it likes,
// as long as it keeps the contract.
func odd() map[string]func(*healer.Case) {
	noRecord := func(c *healer.Case) {
		c.Record = nil
		eachMountPoint(c, func(p *healer.MountPoint) { p.Want = nil })
	}
	return map[string]func(*healer.Case){
		"zero":                        func(c *healer.Case) { *c = healer.Case{} },
		"no mount points":             func(c *healer.Case) { c.MountPoints = nil },
		"mount points without a path": func(c *healer.Case) { eachMountPoint(c, func(p *healer.MountPoint) { *p = healer.MountPoint{} }) },
		"nothing mounted":             func(c *healer.Case) { eachMountPoint(c, func(p *healer.MountPoint) { p.Stack = nil }) },
		"not inspected":               func(c *healer.Case) { eachMountPoint(c, func(p *healer.MountPoint) { p.Inspect = host.PathInfo{} }) },
		"unknown roles":               func(c *healer.Case) { eachMountPoint(c, func(p *healer.MountPoint) { p.Role = "odd" }) },
		"block":                       func(c *healer.Case) { c.Block = true },
		"no record":                   noRecord,
		"no record, no mounts": func(c *healer.Case) {
			noRecord(c)
			eachMountPoint(c, func(p *healer.MountPoint) { p.Stack = nil })
		},
		"empty record": func(c *healer.Case) {
			noRecord(c)
			c.Record = &healer.Record{}
		},
		"record of another boot": func(c *healer.Case) { c.BootID = "another" },
		"another provider found all of it unusable": func(c *healer.Case) {
			for _, p := range c.MountPoints {
				c.Found = append(c.Found, healer.Condition{Status: healer.DataLoss, Reason: "Odd", MountPoint: p.Path, Superblock: p.Dev(), Message: "m", Advice: "a"})
			}
		},
		"no superblocks": func(c *healer.Case) { c.Superblocks = nil },
		"empty superblocks": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { *sb = host.Superblock{} })
		},
		"no device": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { sb.Device = nil })
		},
		"device gone": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { sb.Device = &host.BlockDevice{Missing: true} })
		},
		"not asked":                 answer(host.Answer{}),
		"silent":                    answer(host.Answer{Asked: true, TimedOut: true}),
		"stuck":                     answer(host.Answer{Asked: true, TimedOut: true, Stuck: true}),
		"ENOTCONN":                  answer(host.Answer{Asked: true, Op: "statx", Errno: syscall.ENOTCONN}),
		"an unknown errno":          answer(host.Answer{Asked: true, Errno: 4095}),
		"late for ever":             answer(host.Answer{Asked: true, Late: math.MaxInt, Elapsed: math.MaxInt64}),
		"silent to a write":         answer(host.Answer{Asked: true, TimedOut: true, Writing: true}),
		"frozen":                    answer(host.Answer{Asked: true, Frozen: true}),
		"silent, with many waiting": answer(host.Answer{Asked: true, TimedOut: true, Waiting: math.MaxInt, Waits: slices.Repeat([]string{"f"}, 1000)}),
		"a device that fails":       answer(host.Answer{Asked: true, Op: workerops.OpReadDevice, Errno: syscall.EIO}),
		"access denied":             answer(host.Answer{Asked: true, Op: "open", Errno: syscall.EACCES}),
		"a write that fails":        write(host.Write{Answer: host.Answer{Asked: true, Op: "write", Errno: syscall.EIO}}),
		"a write to what is full":   write(host.Write{Answer: host.Answer{Asked: true, Op: "create", Errno: syscall.ENOSPC}, Unable: true}),
		"a write that is forbidden": write(host.Write{Forbidden: "it is not wanted"}),
		"nothing left": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { sb.Space = host.Space{Blocks: math.MaxUint64, Files: math.MaxUint64} })
		},
		"errors of an unknown time": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { sb.Errors = &host.FilesystemErrors{Count: math.MaxUint64} })
		},
		"errors with a time far ahead": func(c *healer.Case) {
			noRecord(c)
			eachSuperblock(c, func(sb *host.Superblock) {
				sb.Errors = &host.FilesystemErrors{Count: 1, LastTime: time.Unix(math.MaxUint32, 0)}
			})
		},
		"errors of a btrfs": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) {
				sb.Btrfs = &host.BtrfsErrors{Writes: math.MaxUint64, Reads: 1, Missing: 3}
			})
		},
		"an upper of its own": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { sb.Upper = &host.Superblock{Shutdown: true} })
		},
		"a device of which nothing is known": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { sb.Device = &host.BlockDevice{Dev: sb.Dev} })
		},
		"a device with everything wrong": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) {
				sb.Opened = host.OpenedDevice{Open: true, ReadOnly: true, Short: 1}
				sb.Device = &host.BlockDevice{
					Dev: sb.Dev, ReadOnly: true, Loop: &host.Loop{Deleted: true}, Mapping: &host.Mapping{Suspended: true, Orphaned: true},
					Paths: slices.Repeat([]host.DevicePath{{Name: strings.Repeat("x", 32), State: "failed", Failed: true}}, 1000),
				}
			})
		},
		// Names on a disk, and those that a daemon chooses, may come from an attacker.
		"names that fool a reader": func(c *healer.Case) {
			const name = "x\n\x1b[2Jhealthy."
			eachSuperblock(c, func(sb *host.Superblock) {
				sb.FSType, sb.Source = "fuse."+name, name
				sb.Errors = &host.FilesystemErrors{Count: 1, LastTime: time.Unix(1e9, 0), LastFunction: name}
			})
		},
		"names that fool a reader, shut down": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { sb.FSType, sb.Shutdown = "fuse.x\n", true })
		},
		"names that fool a reader, refused": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) {
				sb.FSType, sb.Answer = "x\n", host.Answer{Asked: true, Op: "open", Errno: syscall.EACCES}
			})
		},
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
		"no names at all": func(c *healer.Case) {
			c.Volume, c.Driver, c.BootID = healer.Volume{}, "", ""
			eachMountPoint(c, func(p *healer.MountPoint) {
				for i := range p.Stack {
					p.Stack[i] = host.Mount{}
				}
			})
		},
	}
}

func answer(a host.Answer) func(*healer.Case) {
	return func(c *healer.Case) { eachSuperblock(c, func(sb *host.Superblock) { sb.Answer = a }) }
}

func write(w host.Write) func(*healer.Case) {
	return func(c *healer.Case) { eachSuperblock(c, func(sb *host.Superblock) { sb.Write = w }) }
}

func eachMountPoint(c *healer.Case, change func(*healer.MountPoint)) {
	for i := range c.MountPoints {
		change(&c.MountPoints[i])
	}
}

func eachSuperblock(c *healer.Case, change func(*host.Superblock)) {
	for dev, sb := range c.Superblocks {
		change(&sb)
		c.Superblocks[dev] = sb
	}
}
