package providertest

import (
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

var (
	longAgo = time.Unix(1e9, 0)
	denied  = facts.Answer{Asked: true, Op: "open", Errno: syscall.EACCES}
)

var oddSuperblocks = map[string]Change{
	"no superblocks":      func(c *healer.Case) { c.Superblocks = nil },
	"empty superblocks":   Superblock(func(sb *facts.Superblock) { *sb = facts.Superblock{} }),
	"an upper of its own": Superblock(func(sb *facts.Superblock) { sb.Upper = &facts.Superblock{Shutdown: true} }),
	"nothing left": Superblock(func(sb *facts.Superblock) {
		sb.Space = facts.Space{Blocks: math.MaxUint64, Files: math.MaxUint64}
	}),
	"errors of an unknown time": Superblock(func(sb *facts.Superblock) {
		sb.Errors = &facts.FilesystemErrors{Count: math.MaxUint64}
	}),
	"errors with a time far ahead": func(c *healer.Case) {
		Unrecorded()(c)
		eachSuperblock(c, func(sb *facts.Superblock) {
			sb.Errors = &facts.FilesystemErrors{Count: 1, LastTime: time.Unix(math.MaxUint32, 0)}
		})
	},
}

var oddAnswers = map[string]Change{
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
}

var oddDevices = map[string]Change{
	"no device":   Superblock(func(sb *facts.Superblock) { sb.Device = nil }),
	"device gone": Superblock(func(sb *facts.Superblock) { sb.Device = &facts.BlockDevice{Missing: true} }),
	"a device of which nothing is known": Superblock(func(sb *facts.Superblock) {
		sb.Device = &facts.BlockDevice{Dev: sb.Dev}
	}),
	"a device with everything wrong": Superblock(func(sb *facts.Superblock) {
		sb.Opened = facts.OpenedDevice{Open: true, ReadOnly: true, Short: 1}
		sb.Device = &facts.BlockDevice{
			Dev: sb.Dev, ReadOnly: true, BackingFileGone: true, Mapping: &facts.Mapping{Suspended: true, Orphaned: true},
			DeadPaths: slices.Repeat([]string{strings.Repeat("x", 32) + " failed"}, 1000),
		}
	}),
}
