package engine

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// onFUSE makes the volume one that a FUSE daemon serves.
func onFUSE(b *fixture) {
	for _, p := range []string{podA, staging} {
		b.change(p, func(m *facts.Mount) { m.Dev, m.FSType, m.Source = served, "fuse.rclone", "bucket" })
	}
	b.answers[served] = node.Inspection{Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true}}
	b.lookup = noSuchName
}

var (
	served     = facts.Dev{Minor: 52}
	noSuchName = facts.Lookup{Asked: true, Errno: syscall.ENOENT}
)

func TestLookUpIsAskedWhereItIsCalledFor(t *testing.T) {
	named, unnamed := volume, volume
	named.Named = true
	rootAnswers := func(i node.Inspection) func(*fixture) {
		return func(b *fixture) { b.answers[served] = i }
	}
	for name, tc := range map[string]struct {
		config  func(*Config)
		prepare func(*fixture)
		do      func(*fixture)
		asked   int
	}{
		"a call":                                        {do: func(b *fixture) { checked(b, named); checked(b, named) }, asked: 2},
		"a check of the loop":                           {do: func(b *fixture) { checked(b, unnamed) }},
		"a heal of the loop":                            {do: func(b *fixture) { b.heal(unnamed); b.heal(unnamed) }, asked: 1},
		"a heal after another mount":                    {do: func(b *fixture) { b.heal(unnamed); onOtherMounts(b); b.heal(unnamed) }, asked: 2},
		"by the clock":                                  {config: func(c *Config) { c.LookupInterval = time.Hour }, do: func(b *fixture) { checked(b, unnamed); checked(b, unnamed) }, asked: 1},
		"the last answer was an error":                  {prepare: func(b *fixture) { b.lookup.Errno = syscall.EIO }, do: func(b *fixture) { checked(b, named); checked(b, unnamed) }, asked: 2},
		"below Linux 6.8, a heal of the loop":           {prepare: withoutIDs, do: func(b *fixture) { b.heal(unnamed); b.heal(unnamed) }, asked: 2},
		"below Linux 6.8, by the clock":                 {config: func(c *Config) { c.LookupInterval = time.Hour }, prepare: withoutIDs, do: func(b *fixture) { checked(b, unnamed); checked(b, unnamed) }, asked: 1},
		"below Linux 6.8, the last answer was an error": {prepare: func(b *fixture) { withoutIDs(b); b.lookup.Errno = syscall.EIO }, do: func(b *fixture) { checked(b, named); checked(b, unnamed) }, asked: 2},
		"the answer came late": {
			prepare: rootAnswers(node.Inspection{Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true, Late: 1}}),
			do:      func(b *fixture) { checked(b, unnamed) },
			asked:   1,
		},
		"the root does not answer": {
			prepare: rootAnswers(node.Inspection{Answer: facts.Answer{Asked: true, TimedOut: true}}),
			do:      func(b *fixture) { checked(b, named) },
		},
		"a driver that is not asked": {config: func(c *Config) { c.NoLookup = []string{driver} }, do: func(b *fixture) { checked(b, named) }},
		"no FUSE": {
			prepare: func(b *fixture) {
				b.change(podA, func(m *facts.Mount) { m.FSType = "nfs4" })
				b.change(staging, func(m *facts.Mount) { m.FSType = "nfs4" })
			},
			do: func(b *fixture) { checked(b, named) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []func(*Config)
			if tc.config != nil {
				changes = append(changes, tc.config)
			}
			b := newFixture(t, changes...)
			onFUSE(b)
			if tc.prepare != nil {
				tc.prepare(b)
			}
			tc.do(b)
			if b.lookedUp != tc.asked {
				t.Errorf("asked %d times", b.lookedUp)
			}
		})
	}
}

func withoutIDs(b *fixture) {
	for _, p := range []string{podA, staging} {
		b.change(p, func(m *facts.Mount) { m.ID = 0 })
	}
}

func checked(b *fixture, v healer.Volume) {
	b.t.Helper()
	if _, err := b.engine.Check(context.Background(), v); err != nil {
		b.t.Fatal(err)
	}
}

// onOtherMounts is what a driver leaves that mounts anew: the device has the number of before.
func onOtherMounts(b *fixture) {
	for _, p := range []string{podA, staging} {
		b.change(p, func(m *facts.Mount) { m.ID += 1000 })
	}
}

// TestLookUpRemembers keeps what a daemon answered for as long as it cannot be asked again,
// and that it once asked its storage.
func TestLookUpRemembers(t *testing.T) {
	named := volume
	named.Named = true
	b := newFixture(t)
	onFUSE(b)
	checked(b, named)
	b.lookup = facts.Lookup{Asked: true, Errno: syscall.EACCES}
	checked(b, named)
	b.lookup = facts.Lookup{} // requests wait
	checked(b, named)
	c := b.last()
	if l := c.Superblocks[served].Lookup; l.Errno != syscall.EACCES || !c.LookupFailed(l) {
		t.Errorf("the answer is %+v, and before %t", l, c.LookedUp())
	}
}

// TestLookUpOfADaemonThatSaysItIsDisconnected: a daemon that lives may give the errno of one
// that has ended, for its storage.
func TestLookUpOfADaemonThatSaysItIsDisconnected(t *testing.T) {
	named := volume
	named.Named = true
	b := newFixture(t)
	onFUSE(b)
	b.lookup = facts.Lookup{Asked: true, Errno: syscall.ENOTCONN}
	checked(b, named)
	if l := b.last().Superblocks[served].Lookup; !(healer.Case{}).LookupFailed(l) {
		t.Errorf("the answer is %+v", l)
	}
}
