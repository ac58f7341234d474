package containers

import (
	"cmp"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

// staleMount is what a container has of the volume, and oursBeneath what an interrupted replacement
// left there.
var (
	staleMount  = facts.Mount{ID: 70, OldID: 70, Dev: cases.Export, Root: "/", Path: "/data", FSType: "nfs4", Source: "srv:/v"}
	oursBeneath = facts.Mount{
		ID: 80, OldID: 80, Dev: cases.Export, Root: "/", Path: "/data", FSType: "nfs4", Source: "srv:/v",
		Attr: facts.AttrReadOnly | facts.AttrNoSymFollow,
	}
)

// staleInContainer is a volume on NFS that is healed on the host and stale in a container, which a
// change may change.
func staleInContainer(change func(*healer.InContainer)) healer.Case {
	c := cases.With(cases.NFSAnew, cases.Own(0, cases.Answered(0)))()
	in := &healer.InContainer{
		ContainerMount: facts.ContainerMount{Container: facts.Container{Workload: facts.Workload{PodUID: "a"}, PID: 77, Namespace: 4026}, Mount: staleMount},
		Probe:          facts.ContainerProbe{Errno: syscall.ESTALE}, Proof: "so",
	}
	if change != nil {
		change(in)
	}
	c.MountPoints = append(c.MountPoints, healer.MountPoint{
		Role: healer.RoleContainer, Path: contained, PodUID: "a", Inspect: facts.PathInfo{Inspected: true}, InContainer: in,
		Stack: append([]facts.Mount{in.Mount}, in.Below...),
	})
	return c
}

func TestReplaceOnNFS(t *testing.T) {
	for name, tc := range map[string]struct {
		old     bool  // the kernel
		which   Scope // none: All
		change  func(*healer.InContainer)
		refused string
		plan    func(facts.ContainerSwap) bool
	}{
		"stale": {plan: func(p facts.ContainerSwap) bool { return p.Stale && p.Ours.ID == 0 && p.Source.Path == cases.Published }},
		"ours beneath": {
			change: func(in *healer.InContainer) { in.Below = []facts.Mount{oursBeneath} },
			plan:   func(p facts.ContainerSwap) bool { return p.Stale && p.Ours.ID == 80 },
		},
		"ours alone": {
			change: func(in *healer.InContainer) { in.Mount, in.Probe = oursBeneath, facts.ContainerProbe{} },
			plan:   func(p facts.ContainerSwap) bool { return !p.Stale && p.Ours.ID == 80 },
		},
		"another beneath": {
			change:  func(in *healer.InContainer) { in.Below = []facts.Mount{staleMount} },
			refused: "several mounts",
		},
		"not asked for":    {which: FUSE, refused: "only FUSE is healed in containers"},
		"not proven":       {change: func(in *healer.InContainer) { in.Proof = "" }, refused: "not proven"},
		"on an old kernel": {old: true, refused: healer.ReplaceNotSupported},
		"a subdirectory": {
			change:  func(in *healer.InContainer) { in.Mount.Source = "srv:/v/sub" },
			refused: "no healthy mount",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := staleInContainer(tc.change)
			host, which := &kernel{old: tc.old}, cmp.Or(tc.which, All)
			s := replaceStep(t, host, which, c)
			cases.WantRefused(t, s, tc.refused)
			if tc.plan == nil {
				return
			}
			plan, _, _ := New(host, which).plan(c, s.MountPoint)
			if !tc.plan(plan) {
				t.Errorf("%+v", plan)
			}
		})
	}
}
