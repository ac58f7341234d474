package providertest

import (
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

var (
	longAgo = time.Unix(1e9, 0)
	denied  = host.Answer{Asked: true, Op: "open", Errno: syscall.EACCES}
)

var oddSuperblocks = map[string]Change{
	"no superblocks":      func(c *healer.Case) { c.Superblocks = nil },
	"empty superblocks":   Superblock(func(sb *host.Superblock) { *sb = host.Superblock{} }),
	"an upper of its own": Superblock(func(sb *host.Superblock) { sb.Upper = &host.Superblock{Shutdown: true} }),
	"nothing left": Superblock(func(sb *host.Superblock) {
		sb.Space = host.Space{Blocks: math.MaxUint64, Files: math.MaxUint64}
	}),
	"errors of an unknown time": Superblock(func(sb *host.Superblock) {
		sb.Errors = &host.FilesystemErrors{Count: math.MaxUint64}
	}),
	"errors with a time far ahead": func(c *healer.Case) {
		Unrecorded()(c)
		eachSuperblock(c, func(sb *host.Superblock) {
			sb.Errors = &host.FilesystemErrors{Count: 1, LastTime: time.Unix(math.MaxUint32, 0)}
		})
	},
}

var oddAnswers = map[string]Change{
	"not asked":                 answer(host.Answer{}),
	"silent":                    answer(host.Answer{Asked: true, TimedOut: true}),
	"stuck":                     answer(host.Answer{Asked: true, TimedOut: true, Stuck: true}),
	"ENOTCONN":                  answer(host.Answer{Asked: true, Op: "statx", Errno: syscall.ENOTCONN}),
	"an unknown errno":          answer(host.Answer{Asked: true, Errno: 4095}),
	"late for ever":             answer(host.Answer{Asked: true, Late: math.MaxInt, Elapsed: math.MaxInt64}),
	"silent to a write":         answer(host.Answer{Asked: true, TimedOut: true, Writing: true}),
	"frozen":                    answer(host.Answer{Asked: true, Frozen: true}),
	"silent, in many functions": answer(host.Answer{Asked: true, TimedOut: true, Waits: slices.Repeat([]string{"f"}, 1000)}),
	"a device that fails":       answer(host.Answer{Asked: true, Op: ops.OpReadDevice, Errno: syscall.EIO}),
	"access denied":             answer(denied),
	"a write that fails":        write(host.Write{Answer: host.Answer{Asked: true, Op: "write", Errno: syscall.EIO}}),
	"a write to what is full":   write(host.Write{Answer: host.Answer{Asked: true, Op: "create", Errno: syscall.ENOSPC}, Unable: true}),
	"a write that is forbidden": write(host.Write{Forbidden: "it is not wanted"}),
}

var oddDevices = map[string]Change{
	"no device":   Superblock(func(sb *host.Superblock) { sb.Device = nil }),
	"device gone": Superblock(func(sb *host.Superblock) { sb.Device = &host.BlockDevice{Missing: true} }),
	"a device of which nothing is known": Superblock(func(sb *host.Superblock) {
		sb.Device = &host.BlockDevice{Dev: sb.Dev}
	}),
	"a device with everything wrong": Superblock(func(sb *host.Superblock) {
		sb.Opened = host.OpenedDevice{Open: true, ReadOnly: true, Short: 1}
		sb.Device = &host.BlockDevice{
			Dev: sb.Dev, ReadOnly: true, BackingFileGone: true, Mapping: &host.Mapping{Suspended: true, Orphaned: true},
			DeadPaths: slices.Repeat([]string{strings.Repeat("x", 32) + " failed"}, 1000),
		}
	}),
}
