package mounts

import (
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

func TestNFSConditions(t *testing.T) {
	whole := func(a facts.Answer) cases.Change {
		return cases.Of(cases.Export, func(sb *healer.Superblock) { sb.Answer = a })
	}
	for _, tc := range []example{
		{name: "stale, and staged anew", build: cases.With(cases.NFSAnew), want: []string{"StaleFileHandle! target: ESTALE"}},
		{
			name:  "all stale",
			build: cases.With(cases.NFSAnew, cases.Own(1, cases.Answered(syscall.ESTALE)), whole(cases.Answered(syscall.ESTALE))),
			want:  []string{"StaleFileHandle target: ESTALE"},
		},
		{
			name:  "stale, and what is staged fails otherwise",
			build: cases.With(cases.NFSAnew, cases.Own(1, cases.Answered(syscall.EIO)), whole(cases.Answered(syscall.EIO))),
			want:  []string{"StaleFileHandle! target: ESTALE", "IOError staging: EIO"},
		},
		{
			name:  "only what is staged is stale",
			build: cases.With(cases.NFSAnew, cases.Own(0, cases.Answered(0)), cases.Own(1, cases.Answered(syscall.ESTALE))),
			want:  []string{"StaleFileHandle staging: ESTALE"},
		},
		{
			name:  "the server is silent",
			build: cases.With(cases.NFSAnew, cases.Own(0, facts.Answer{}), cases.Own(1, facts.Answer{}), whole(facts.Answer{Asked: true, TimedOut: true})),
			want:  []string{"NotResponding target:"},
		},
		{name: "well", build: cases.With(cases.NFSAnew, cases.Own(0, cases.Answered(0)))},
	} {
		t.Run(tc.name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

func TestReplaceOnNFS(t *testing.T) {
	c := cases.With(cases.NFSAnew)()
	h := &scribe{}
	s := step(t, h, c)
	if s.Name != StepReplace || s.Refused != "" || s.Source != cases.Export || s.MountPoint.Path != cases.Published {
		t.Fatalf("%+v", s)
	}
	_ = s.Run(t.Context(), cases.Willing)
	if !facts.IsNFS(h.plan.Dead.FSType) || h.plan.Ended || h.plan.Sub != "" || h.plan.Staged.ID != 8 || h.plan.Dead.ID != 7 {
		t.Errorf("%+v", h.plan)
	}
}

// Nothing but ESTALE of the mount point's own root, beside a staged one that answers, is
// reason to replace anything.
func TestNoReplaceOnNFS(t *testing.T) {
	apart := func(c *healer.Case) { // nosharecache
		was := facts.Dev{Minor: 45}
		c.Superblocks[was] = c.Superblocks[cases.Export]
		c.MountPoints[0].Stack[0].Dev = was
	}
	for name, changes := range map[string][]cases.Change{
		"it answers":                  {cases.Own(0, cases.Answered(0))},
		"an I/O error":                {cases.Own(0, cases.Answered(syscall.EIO))},
		"a soft mount that timed out": {cases.Own(0, cases.Answered(syscall.ETIMEDOUT))},
		"an I/O error, apart":         {cases.Own(0, cases.Answered(syscall.EIO)), apart},
		"what is staged is stale":     {cases.Own(1, cases.Answered(syscall.ESTALE))},
		"silence":                     {cases.Own(0, facts.Answer{}), cases.Own(1, facts.Answer{}), cases.Of(cases.Export, func(sb *healer.Superblock) { sb.Answer = facts.Answer{Asked: true, TimedOut: true} })},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := New(idle{t}).Examine(cases.With(append([]cases.Change{cases.NFSAnew}, changes...)...)())
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
		{"never seen healthy", cases.Unrecorded},
	} {
		cases.WantRefused(t, step(t, idle{t}, cases.With(cases.NFSAnew, tc.change)()), tc.why)
	}
	away := cases.Answered(syscall.ESTALE)
	away.Op = "open"
	cases.WantRefused(t, step(t, idle{t}, cases.With(cases.NFSAnew, cases.Own(0, away))()), "no path walk reaches the mount")
	if s := step(t, &scribe{old: true}, cases.With(cases.NFSAnew)()); s.Refused != healer.ReplaceNotSupported {
		t.Errorf("on an old kernel: %+v", s)
	}
}

func TestRebindOnNFS(t *testing.T) {
	bare := cases.With(cases.NFSAnew, cases.Lost)
	if s := step(t, idle{t}, bare()); s.Name != StepRebind || s.Refused != "" {
		t.Errorf("%+v", s)
	}
	for _, source := range []string{"", "srv:/v/sub"} {
		c := cases.With(cases.NFSAnew, cases.Lost, recorded(0, func(r *healer.MountPointRecord) { r.Source = source }))()
		cases.WantRefused(t, step(t, idle{t}, c), "not known to have shown the directory")
	}
}

// A stale mount over a good one of the same superblock is taken off.
func TestUnmountDeadTopOnNFS(t *testing.T) {
	c := cases.With(cases.NFSAnew, func(c *healer.Case) {
		below := c.MountPoints[0].Stack[0]
		below.ID, below.OldID = 9, 9
		c.MountPoints[0].Stack = append(c.MountPoints[0].Stack, below)
	})()
	if s := step(t, idle{t}, c); s.Name != StepUnmountDeadTop || s.Refused != "" {
		t.Errorf("%+v", s)
	}
}
