package containers

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

func TestReplaceOnNFS(t *testing.T) {
	dead := facts.Mount{ID: 70, OldID: 70, Dev: export, Root: "/", Path: "/data", FSType: "nfs4", Source: "srv:/v"}
	ours := dead
	ours.ID, ours.OldID, ours.Attr = 80, 80, facts.AttrReadOnly|facts.AttrNoSymFollow
	build := func(change func(*healer.InContainer)) healer.Case {
		c := with(nfsAnew, own(0, answered(0)))()
		in := &healer.InContainer{
			ContainerMount: facts.ContainerMount{Container: facts.Container{Workload: facts.Workload{PodUID: "a"}, PID: 77, Namespace: 4026}, Mount: dead},
			Probe:          facts.ContainerProbe{Errno: syscall.ESTALE}, Proof: "so",
		}
		change(in)
		c.MountPoints = append(c.MountPoints, healer.MountPoint{
			Role: healer.RoleContainer, Path: contained, PodUID: "a", Inspect: facts.PathInfo{Inspected: true}, InContainer: in,
			Stack: append([]facts.Mount{in.Mount}, in.Below...),
		})
		return c
	}
	same := func(*healer.InContainer) {}
	for name, tc := range map[string]struct {
		host    *kernel
		which   Scope
		change  func(*healer.InContainer)
		refused string
		plan    func(facts.ContainerSwap) bool
	}{
		"stale":            {&kernel{}, All, same, "", func(p facts.ContainerSwap) bool { return p.Stale && p.Ours.ID == 0 && p.Source.Path == published }},
		"ours beneath":     {&kernel{}, All, func(in *healer.InContainer) { in.Below = []facts.Mount{ours} }, "", func(p facts.ContainerSwap) bool { return p.Stale && p.Ours.ID == 80 }},
		"ours alone":       {&kernel{}, All, func(in *healer.InContainer) { in.Mount, in.Probe = ours, facts.ContainerProbe{} }, "", func(p facts.ContainerSwap) bool { return !p.Stale && p.Ours.ID == 80 }},
		"another beneath":  {&kernel{}, All, func(in *healer.InContainer) { in.Below = []facts.Mount{dead} }, "several mounts", nil},
		"not asked for":    {&kernel{}, FUSE, same, "only FUSE is healed in containers", nil},
		"not proven":       {&kernel{}, All, func(in *healer.InContainer) { in.Proof = "" }, "not proven", nil},
		"on an old kernel": {&kernel{old: true}, All, same, healer.ReplaceNotSupported, nil},
		"a subdirectory":   {&kernel{}, All, func(in *healer.InContainer) { in.Mount.Source = "srv:/v/sub" }, "no healthy mount", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := build(tc.change)
			s := replaceStep(t, tc.host, tc.which, c)
			wantRefused(t, s, tc.refused)
			if tc.plan == nil {
				return
			}
			plan, _, _ := New(tc.host, tc.which).plan(c, s.MountPoint)
			if !tc.plan(plan) {
				t.Errorf("%+v", plan)
			}
		})
	}
}
