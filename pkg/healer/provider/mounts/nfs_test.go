package mounts

import (
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// export is the superblock of an NFS export, which all its mounts share.
var export = facts.Dev{Minor: 44}

func answered(e syscall.Errno) facts.Answer { return facts.Answer{Asked: true, Op: "statx", Errno: e} }

// nfsAnew is an NFS volume that the driver has staged anew while the pod's mount point is
// stale, of one superblock.
func nfsAnew(c *healer.Case) {
	c.Record.FSType, c.Record.Source, c.Record.Identity = "nfs4", "srv:/v", facts.Identity{}
	c.Superblocks = map[facts.Dev]facts.Superblock{
		export: {Dev: export, FSType: "nfs4", Source: "srv:/v", Kind: facts.KindDirectory, Answer: answered(0)},
	}
	for i := range c.MountPoints {
		m := &c.MountPoints[i].Stack[0]
		m.Dev, m.FSType, m.Source, m.Root = export, "nfs4", "srv:/v", "/"
		c.Record.MountPoints[i].Dev, c.Record.MountPoints[i].Root, c.Record.MountPoints[i].Source = export, "/", "srv:/v"
	}
	c.MountPoints[1].Stack[0].ID, c.MountPoints[1].Stack[0].OldID = 8, 8
	c.MountPoints[0].Own, c.MountPoints[1].Own = answered(syscall.ESTALE), answered(0)
}

// wantRefused fails unless a step is refused for a reason, or is not if that is empty.
func wantRefused(t *testing.T, s healer.Step, why string) {
	t.Helper()
	if (s.Refused == "") != (why == "") || !strings.Contains(s.Refused, why) {
		t.Errorf("%s is refused with %q, want %q", s.Name, s.Refused, why)
	}
}

// own changes what a mount point's own mount answered.
func own(mountPoint int, a facts.Answer) func(*healer.Case) {
	return func(c *healer.Case) { c.MountPoints[mountPoint].Own = a }
}

func TestNFSConditions(t *testing.T) {
	whole := func(a facts.Answer) func(*healer.Case) {
		return of(export, func(sb *facts.Superblock) { sb.Answer = a })
	}
	for _, tc := range []example{
		{"stale, and staged anew", with(nfsAnew), []string{"StaleFileHandle! target: ESTALE"}},
		{"all stale", with(nfsAnew, own(1, answered(syscall.ESTALE)), whole(answered(syscall.ESTALE))), []string{"StaleFileHandle target: ESTALE"}},
		{"stale, and what is staged fails otherwise", with(nfsAnew, own(1, answered(syscall.EIO)), whole(answered(syscall.EIO))), []string{"StaleFileHandle! target: ESTALE", "IOError staging: EIO"}},
		{"only what is staged is stale", with(nfsAnew, own(0, answered(0)), own(1, answered(syscall.ESTALE))), []string{"StaleFileHandle staging: ESTALE"}},
		{"the server is silent", with(nfsAnew, own(0, facts.Answer{}), own(1, facts.Answer{}), whole(facts.Answer{Asked: true, TimedOut: true})), []string{"NotResponding target:"}},
		{"well", with(nfsAnew, own(0, answered(0))), nil},
	} {
		t.Run(tc.name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

func TestReplaceOnNFS(t *testing.T) {
	c := with(nfsAnew)()
	h := &scribe{}
	s := step(t, h, c)
	if s.Name != StepReplace || s.Refused != "" || s.Source != export || s.MountPoint.Path != published {
		t.Fatalf("%+v", s)
	}
	_ = s.Run(t.Context(), willing)
	if !h.plan.Stale || h.plan.Ended || h.plan.Sub != "" || h.plan.Staged.ID != 8 || h.on.ID != 7 {
		t.Errorf("%+v on %+v", h.plan, h.on)
	}
}

// Nothing but ESTALE of the mount point's own root, beside a staged one that answers, is
// reason to replace anything.
func TestNoReplaceOnNFS(t *testing.T) {
	apart := func(c *healer.Case) { // nosharecache
		was := facts.Dev{Minor: 45}
		c.Superblocks[was] = c.Superblocks[export]
		c.MountPoints[0].Stack[0].Dev = was
	}
	for name, changes := range map[string][]func(*healer.Case){
		"it answers":                  {own(0, answered(0))},
		"an I/O error":                {own(0, answered(syscall.EIO))},
		"a soft mount that timed out": {own(0, answered(syscall.ETIMEDOUT))},
		"an I/O error, apart":         {own(0, answered(syscall.EIO)), apart},
		"what is staged is stale":     {own(1, answered(syscall.ESTALE))},
		"silence":                     {own(0, facts.Answer{}), own(1, facts.Answer{}), of(export, func(sb *facts.Superblock) { sb.Answer = facts.Answer{Asked: true, TimedOut: true} })},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := New(idle{t}).Examine(with(append([]func(*healer.Case){nfsAnew}, changes...)...)())
			if err != nil || len(f.Steps) != 0 {
				t.Errorf("%+v, %v", f.Steps, err)
			}
		})
	}
}

func TestReplaceOnNFSIsRefused(t *testing.T) {
	for _, tc := range []struct {
		why    string
		change func(*healer.Case)
	}{
		{"the dead mount had another source", top(0, func(m *facts.Mount) { m.Source = "srv:/v/sub" })},
		{"shows another directory of the server than it did", recorded(0, func(r *healer.MountPointRecord) { r.Source = "srv:/w" })},
		{"never seen healthy", unrecorded},
	} {
		wantRefused(t, step(t, idle{t}, with(nfsAnew, tc.change)()), tc.why)
	}
	away := answered(syscall.ESTALE)
	away.Op = "open"
	wantRefused(t, step(t, idle{t}, with(nfsAnew, own(0, away))()), "no path walk reaches the mount")
	if s := step(t, &scribe{old: true}, with(nfsAnew)()); s.Refused != healer.ReplaceNotSupported {
		t.Errorf("on an old kernel: %+v", s)
	}
}

func TestRebindOnNFS(t *testing.T) {
	bare := with(nfsAnew, lost)
	if s := step(t, idle{t}, bare()); s.Name != StepRebind || s.Refused != "" {
		t.Errorf("%+v", s)
	}
	for _, source := range []string{"", "srv:/v/sub"} {
		c := with(nfsAnew, lost, recorded(0, func(r *healer.MountPointRecord) { r.Source = source }))()
		wantRefused(t, step(t, idle{t}, c), "not known to have shown the directory")
	}
}

// A stale mount over a good one of the same superblock is taken off.
func TestUnmountDeadTopOnNFS(t *testing.T) {
	c := with(nfsAnew, func(c *healer.Case) {
		below := c.MountPoints[0].Stack[0]
		below.ID, below.OldID = 9, 9
		c.MountPoints[0].Stack = append(c.MountPoints[0].Stack, below)
	})()
	if s := step(t, idle{t}, c); s.Name != StepUnmountDeadTop || s.Refused != "" {
		t.Errorf("%+v", s)
	}
}
