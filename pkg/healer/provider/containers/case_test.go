package containers

import (
	"context"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/mounts"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

// contained is where a container of the pod has the volume, seen from outside.
const contained = "/proc/77/root/data"

// kernel is a host that records plans. Its other operations are never called.
type kernel struct {
	mounts.Host
	plans []facts.ContainerSwap
	errs  map[int]error // by container
	// old is true for one that cannot put a mount beneath another.
	old bool
}

func (k *kernel) CanReplace() bool { return !k.old }
func (*kernel) CanCover() bool     { return true }

func (k *kernel) ReplaceInContainers(_ context.Context, plans []facts.ContainerSwap) (errs []error) {
	k.plans = append(k.plans, plans...)
	for _, p := range plans {
		errs = append(errs, k.errs[p.Container.PID])
	}
	return errs
}

// examine asks the generic provider first, as the engine does.
func examine(t *testing.T, k *kernel, s Scope, c healer.Case) healer.Finding {
	t.Helper()
	onHost, err := mounts.New(k).Examine(c)
	if err != nil {
		t.Fatal(err)
	}
	c.Found = onHost.Conditions
	f, err := New(k, s).Examine(c)
	if err != nil || !f.Mine {
		t.Fatalf("mine: %v, %v", f.Mine, err)
	}
	return f
}

// healedOnHost is a volume that is healed on the host, while a container still has the
// previous instance of it.
func healedOnHost(c *healer.Case) {
	cases.Outliving(c)
	c.MountPoints[0].Stack[0].Dev = cases.Renewed
	delete(c.Superblocks, cases.Previously)
	c.MountPoints = append(c.MountPoints, healer.MountPoint{
		Role: healer.RoleContainer, Path: contained, PodUID: "a", Inspect: facts.PathInfo{Inspected: true},
		InContainer: &healer.InContainer{
			ContainerMount: facts.ContainerMount{
				Container: facts.Container{Workload: facts.Workload{PodUID: "a"}, PID: 77, Namespace: 4026}, Mount: facts.Mount{
					ID: 70, OldID: 70, Dev: cases.Previously, Root: "/sub", Path: "/data", FSType: "fuse.x", Source: "src", Attr: facts.AttrNoSUID,
				},
			},
			Attr:  facts.AttrNoSUID,
			Probe: facts.ContainerProbe{Errno: syscall.ENOTCONN}, Proof: "the record says so",
		},
	})
	inContainer(func(*healer.InContainer) {})(c)
}

// inContainer changes what the container has.
func inContainer(change func(*healer.InContainer)) cases.Change {
	return func(c *healer.Case) {
		p := &c.MountPoints[2]
		change(p.InContainer)
		p.Stack = append([]facts.Mount{p.InContainer.Mount}, p.InContainer.Below...)
	}
}

func has(change func(*facts.Mount)) cases.Change {
	return inContainer(func(in *healer.InContainer) { change(&in.Mount) })
}

// unfinished is what an interrupted replacement left in the container.
func unfinished(in *healer.InContainer) facts.Mount {
	m := in.Mount
	m.ID, m.OldID, m.Dev, m.Attr = 71, 71, cases.Renewed, m.Attr|facts.AttrReadOnly|facts.AttrNoSymFollow
	return m
}

func unfinishedAlone(in *healer.InContainer) { in.Mount, in.Probe.Errno = unfinished(in), 0 }
func unfinishedBelow(in *healer.InContainer) { in.Below = []facts.Mount{unfinished(in)} }

// stackedOnDead is one that stands on the dead mount: something that came on top of the
// dead one while ours was put beneath it is gone again.
func stackedOnDead(in *healer.InContainer) {
	in.Below = []facts.Mount{in.Mount}
	unfinishedAlone(in)
}
