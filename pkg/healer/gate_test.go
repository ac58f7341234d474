package healer

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/host"
)

func TestWantedGate(t *testing.T) {
	for _, tc := range []struct {
		name                      string
		runs, standalone, isNamed bool
		// unasked is whether there was no call.
		unasked bool
		want    string // why not; empty: it may
	}{
		{name: "a container has it", runs: true},
		{name: "a container has it, it was not named", runs: true, standalone: true},
		{name: "the caller vouches", standalone: true, isNamed: true},
		{name: "the caller vouches for another mount point", standalone: true, want: "vouches only for the path it names"},
		{name: "nothing proves it", isNamed: true, want: "nothing proves"},
		{name: "there was no caller to vouch", standalone: true, isNamed: true, unasked: true, want: "proves that the mount point is wanted"},
		{name: "there was no call, a container has it", runs: true, standalone: true, unasked: true},
	} {
		w := newFakeNode(t)
		if tc.runs {
			w.pods["uid-a"] = disk
		}
		g := WantedGate{Node: w, Standalone: tc.standalone}
		p, err := g.Enter(context.Background(), Diagnosis{Case: Case{Volume: Volume{Unasked: tc.unasked}}}, Step{MountPoint: MountPoint{PodUID: "uid-a", Named: tc.isNamed}, Source: disk})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err == nil {
			if err := p.Revalidate(context.Background()); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			p.Leave(nil)
		}
	}
}

func TestWantedGateForAWrite(t *testing.T) {
	mountPoint := MountPoint{PodUID: "uid-a", Path: podA, Stack: []facts.Mount{{Dev: disk, Path: podA}}}
	staged := MountPoint{Path: staging, Stack: []facts.Mount{{Dev: disk, Path: staging}}}
	for _, tc := range []struct {
		name       string
		runs       facts.Dev
		mountPoint MountPoint
		standalone bool
		want       string // why not; empty: it may
	}{
		{name: "a container has it", runs: disk, mountPoint: mountPoint},
		{name: "a container has another one", runs: facts.Dev{Major: 9}, mountPoint: mountPoint, want: "no running container"},
		{name: "no container runs", mountPoint: mountPoint, want: "no running container"},
		{name: "the staging mount point", runs: disk, mountPoint: staged, want: "no running container"},
		{name: "there is no orchestrator", mountPoint: staged, standalone: true},
	} {
		w := newFakeNode(t)
		if !tc.runs.Zero() {
			w.pods["uid-a"] = tc.runs
		}
		g := WantedGate{Node: w, Standalone: tc.standalone}
		if err := g.Write(context.Background(), Case{}, tc.mountPoint, true); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	blind := errors.New("no procfs")
	if err := (WantedGate{Node: noHolders{blind}}).Write(context.Background(), Case{}, mountPoint, true); !errors.Is(err, blind) {
		t.Errorf("it cannot be told: %v", err)
	}
}

type noHolders struct{ err error }

func (n noHolders) Holder(context.Context, string, facts.Dev) (*host.Holder, error) {
	return nil, n.err
}
func (noHolders) HolderAt(context.Context, facts.ContainerMount) *host.Holder { return nil }

func TestGateThatCannotTellRefuses(t *testing.T) {
	blind := errors.New("no procfs")
	g := WantedGate{Node: noHolders{blind}, Standalone: true}
	if _, err := g.Enter(context.Background(), Diagnosis{}, Step{Source: disk, MountPoint: MountPoint{Named: true}}); !errors.Is(err, blind) {
		t.Errorf("got %v", err)
	}
}

// housed finds containers that have these superblocks, each by its process.
type housed struct {
	*fakeNode
	at map[int]facts.Dev
}

func (h housed) HolderAt(_ context.Context, m facts.ContainerMount) *host.Holder {
	if h.at[m.PID] != m.Mount.Dev {
		return nil
	}
	return host.Hold(os.Getpid())
}

func TestWhoProvesThatAMountPointIsWanted(t *testing.T) {
	container := func(podUID, proof string) MountPoint {
		p := containerMountPoint(0, previously, proof)
		p.PodUID, p.InContainer.PodUID = podUID, podUID
		return p
	}
	mountPoint := MountPoint{Role: RoleTarget, Path: podA, PodUID: "uid-a", Proven: true, Stack: []facts.Mount{{Dev: previously, Path: podA}}}
	named := MountPoint{Role: RoleTarget, Path: podA + "/0", PodUID: "uid-a", Named: true, Stack: []facts.Mount{{Dev: facts.Dev{Minor: 1}, Path: podA + "/0"}}}
	bare := MountPoint{Role: RoleTarget, Path: podA, PodUID: "uid-a", Stack: []facts.Mount{{Dev: previously, Path: "/"}}}
	staged := MountPoint{Role: RoleStaging, Path: staging, Stack: []facts.Mount{{Dev: renewed, Path: staging}}}
	for name, tc := range map[string]struct {
		step        Step
		mountPoints []MountPoint
		has         facts.Dev         // what a container of pod a has, by its table
		at          map[int]facts.Dev // what it has, by its process
		want        bool
	}{
		"it has what is brought":           {step: Step{MountPoint: mountPoint, Source: renewed}, has: renewed, want: true},
		"it has what is taken away":        {step: Step{MountPoint: mountPoint, Source: renewed}, has: previously, want: true},
		"it has another one":               {step: Step{MountPoint: mountPoint, Source: renewed}, has: facts.Dev{Minor: 1}},
		"no container runs":                {step: Step{MountPoint: mountPoint, Source: renewed}},
		"nothing is there":                 {step: Step{MountPoint: MountPoint{PodUID: "uid-a"}, Source: renewed}, has: facts.Dev{Minor: 1}},
		"it has the disk of a bare place":  {step: Step{MountPoint: bare, Source: renewed}, has: previously},
		"staging, it has what the pod has": {step: Step{MountPoint: staged}, has: previously, want: true},
		"staging, it has what was named":   {step: Step{MountPoint: staged}, mountPoints: []MountPoint{named}, has: facts.Dev{Minor: 1}},
		"staging, it has another one":      {step: Step{MountPoint: staged}, has: facts.Dev{Minor: 1}},
		"it has one from before":           {step: Step{MountPoint: mountPoint, Source: renewed}, mountPoints: []MountPoint{container("uid-a", "proven")}, at: map[int]facts.Dev{1000: previously}, want: true},
		"it had one from before":           {step: Step{MountPoint: mountPoint, Source: renewed}, mountPoints: []MountPoint{container("uid-a", "proven")}, at: map[int]facts.Dev{1000: renewed}},
		"one that is not proven":           {step: Step{MountPoint: mountPoint, Source: renewed}, mountPoints: []MountPoint{container("uid-a", "")}, at: map[int]facts.Dev{1000: previously}},
		"one of another pod":               {step: Step{MountPoint: mountPoint, Source: renewed}, mountPoints: []MountPoint{container("uid-b", "proven")}, at: map[int]facts.Dev{1000: previously}},
		"in the container itself":          {step: Step{MountPoint: container("uid-a", "proven"), Source: renewed}, at: map[int]facts.Dev{1000: previously}, want: true},
		"in a container that has it new":   {step: Step{MountPoint: container("uid-a", "proven"), Source: renewed}, at: map[int]facts.Dev{1000: renewed}},
		"in a container, another has it":   {step: Step{MountPoint: container("uid-a", "proven"), Source: renewed}, has: previously},
		"in a container that was replaced": {step: Step{MountPoint: container("uid-a", "proven"), Source: renewed}, at: map[int]facts.Dev{1001: previously}},
	} {
		w := newFakeNode(t)
		if !tc.has.Zero() {
			w.pods["uid-a"] = tc.has
		}
		h, err := HolderFor(t.Context(), housed{w, tc.at}, Case{MountPoints: append([]MountPoint{mountPoint}, tc.mountPoints...)}, tc.step)
		if err != nil || (h != nil) != tc.want {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
		if h != nil {
			h.Close()
		}
	}
	if h, err := HolderFor(t.Context(), noHolders{errors.New("no procfs")}, Case{}, Step{MountPoint: mountPoint}); h != nil || err == nil {
		t.Errorf("it cannot be told: %+v, %v", h, err)
	}
}

// With --standalone the caller vouches for the volume's containers, too: it is
// they that have the mount point.
func TestWantedGateInAContainer(t *testing.T) {
	inContainer := containerMountPoint(0, previously, "proven")
	for name, tc := range map[string]struct {
		standalone, runs bool
		want             bool
	}{
		"it runs":                           {runs: true, want: true},
		"it has ended":                      {},
		"it cannot be told, but they vouch": {standalone: true, want: true},
		"it runs, and there is no cluster":  {standalone: true, runs: true, want: true},
	} {
		at := map[int]facts.Dev{}
		if tc.runs {
			at[inContainer.InContainer.PID] = previously
		}
		g := WantedGate{Node: housed{newFakeNode(t), at}, Standalone: tc.standalone}
		p, err := g.Enter(context.Background(), Diagnosis{}, Step{MountPoint: inContainer, Source: renewed})
		if (err == nil) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if err := p.Revalidate(context.Background()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			p.Leave(nil)
		}
	}
}

func TestPermitEndsWithItsContainer(t *testing.T) {
	container := exec.Command("sleep", "60")
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	h := host.Hold(container.Process.Pid)
	if h == nil {
		t.Fatal("no pidfd")
	}
	p := heldPermit{h}
	if err := p.Revalidate(context.Background()); err != nil {
		t.Error(err)
	}
	_ = container.Process.Kill()
	_ = container.Wait()
	if err := p.Revalidate(context.Background()); !errors.Is(err, ErrRefused) {
		t.Errorf("the container has ended: %v", err)
	}
	p.Leave(nil)
}

func TestVouchedPermitEndsWithItsCall(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := (vouchedPermit{}).Revalidate(ctx); err == nil {
		t.Error("it outlives the call")
	}
}
