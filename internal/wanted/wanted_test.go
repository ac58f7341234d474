package wanted

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	podA    = "/k/pods/uid-a/volumes/kubernetes.io~csi/pv1/mount"
	staging = "/k/plugins/kubernetes.io/csi/d.example.com/hash/globalmount"
)

var (
	disk       = facts.Dev{Major: 8, Minor: 16}
	previously = facts.Dev{Minor: 40}
	renewed    = facts.Dev{Minor: 41}
)

// holders finds containers that have superblocks: by the pod, or by the process.
type holders struct {
	pods      map[string]facts.Dev
	processes map[int]facts.Dev
}

func (f holders) Holder(_ context.Context, podUID string, dev facts.Dev) (*node.Holder, error) {
	if has, runs := f.pods[podUID]; !runs || has != dev {
		return nil, nil //nolint:nilnil // as documented
	}
	return node.Hold(os.Getpid()), nil
}

func (f holders) HolderAt(_ context.Context, m facts.ContainerMount) *node.Holder {
	if f.processes[m.PID] != m.Mount.Dev {
		return nil
	}
	return node.Hold(os.Getpid())
}

// containerMountPoint is what a container of pod a has, with the process 1000.
func containerMountPoint(dev facts.Dev, proof string) healer.MountPoint {
	m := facts.ContainerMount{
		Container: facts.Container{Workload: facts.Workload{PodUID: "uid-a"}, PID: 1000},
		Mount:     facts.Mount{ID: 700, Dev: dev, Root: "/", Path: "/data"},
	}
	return healer.MountPoint{Role: healer.RoleContainer, Path: m.Path(), Stack: []facts.Mount{m.Mount}, InContainer: &healer.InContainer{ContainerMount: m, Proof: proof}}
}

func TestGate(t *testing.T) {
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
		{name: "the caller vouches for another mount point", standalone: true, want: "vouches only for the path that it names"},
		{name: "nothing proves it", isNamed: true, want: "nothing proves"},
		{name: "there was no caller to vouch", standalone: true, isNamed: true, unasked: true, want: "would prove that the mount point is wanted; a call that names its path would vouch for it"},
		{name: "there was no call, a container has it", runs: true, standalone: true, unasked: true},
	} {
		has := holders{pods: map[string]facts.Dev{}}
		if tc.runs {
			has.pods["uid-a"] = disk
		}
		g := Gate{Node: has, Standalone: tc.standalone}
		d := healer.Diagnosis{Case: healer.Case{Volume: healer.Volume{Unasked: tc.unasked}}}
		step := healer.Step{MountPoint: healer.MountPoint{PodUID: "uid-a", Named: tc.isNamed}, Source: disk}
		p, err := g.Enter(context.Background(), d, step)
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

func TestGateForAWrite(t *testing.T) {
	mountPoint := healer.MountPoint{PodUID: "uid-a", Path: podA, Stack: []facts.Mount{{Dev: disk, Path: podA}}}
	staged := healer.MountPoint{Path: staging, Stack: []facts.Mount{{Dev: disk, Path: staging}}}
	for _, tc := range []struct {
		name       string
		runs       facts.Dev
		mountPoint healer.MountPoint
		standalone bool
		want       string // why not; empty: it may
	}{
		{name: "a container has it", runs: disk, mountPoint: mountPoint},
		{name: "a container has another one", runs: facts.Dev{Major: 9}, mountPoint: mountPoint, want: "is seen to have"},
		{name: "no container runs", mountPoint: mountPoint, want: "is seen to have"},
		{name: "the staging mount point", runs: disk, mountPoint: staged, want: "is seen to have"},
		{name: "there is no orchestrator", mountPoint: staged, standalone: true},
	} {
		has := holders{pods: map[string]facts.Dev{}}
		if !tc.runs.Zero() {
			has.pods["uid-a"] = tc.runs
		}
		g := Gate{Node: has, Standalone: tc.standalone}
		if err := g.Write(context.Background(), healer.Case{}, tc.mountPoint, true); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	blind := errors.New("no procfs")
	if err := (Gate{Node: noHolders{blind}}).Write(context.Background(), healer.Case{}, mountPoint, true); !errors.Is(err, blind) {
		t.Errorf("it cannot be told: %v", err)
	}
}

type noHolders struct{ err error }

func (n noHolders) Holder(context.Context, string, facts.Dev) (*node.Holder, error) {
	return nil, n.err
}
func (noHolders) HolderAt(context.Context, facts.ContainerMount) *node.Holder { return nil }

func TestGateThatCannotTellRefuses(t *testing.T) {
	blind := errors.New("no procfs")
	g := Gate{Node: noHolders{blind}, Standalone: true}
	if _, err := g.Enter(context.Background(), healer.Diagnosis{}, healer.Step{Source: disk, MountPoint: healer.MountPoint{Named: true}}); !errors.Is(err, blind) {
		t.Errorf("got %v", err)
	}
}

var (
	mountPoint = healer.MountPoint{Role: healer.RoleTarget, Path: podA, PodUID: "uid-a", Proven: true, Stack: []facts.Mount{{Dev: previously, Path: podA}}}
	// named is one beneath it that the caller named, of another superblock.
	named = healer.MountPoint{Role: healer.RoleTarget, Path: podA + "/0", PodUID: "uid-a", Named: true, Stack: []facts.Mount{{Dev: facts.Dev{Minor: 1}, Path: podA + "/0"}}}
	// bare has nothing mounted but the disk that its directory lies on.
	bare   = healer.MountPoint{Role: healer.RoleTarget, Path: podA, PodUID: "uid-a", Stack: []facts.Mount{{Dev: previously, Path: "/"}}}
	staged = healer.MountPoint{Role: healer.RoleStaging, Path: staging, Stack: []facts.Mount{{Dev: renewed, Path: staging}}}
)

// inContainerOf is the mount point of a container of a pod.
func inContainerOf(podUID, proof string) healer.MountPoint {
	p := containerMountPoint(previously, proof)
	p.PodUID, p.InContainer.PodUID = podUID, podUID
	return p
}

var wantedCases = map[string]struct {
	step        healer.Step
	mountPoints []healer.MountPoint
	has         facts.Dev         // what a container of pod a has, by its table
	at          map[int]facts.Dev // what it has, by its process
	want        bool
}{
	"it has what is brought":    {step: healer.Step{MountPoint: mountPoint, Source: renewed}, has: renewed, want: true},
	"it has what is taken away": {step: healer.Step{MountPoint: mountPoint, Source: renewed}, has: previously, want: true},
	"it has another one":        {step: healer.Step{MountPoint: mountPoint, Source: renewed}, has: facts.Dev{Minor: 1}},
	"no container runs":         {step: healer.Step{MountPoint: mountPoint, Source: renewed}},
	"nothing is there": {
		step: healer.Step{MountPoint: healer.MountPoint{PodUID: "uid-a"}, Source: renewed},
		has:  facts.Dev{Minor: 1},
	},
	"it has the disk of a bare place":  {step: healer.Step{MountPoint: bare, Source: renewed}, has: previously},
	"staging, it has what the pod has": {step: healer.Step{MountPoint: staged}, has: previously, want: true},
	"staging, it has what was named": {
		step:        healer.Step{MountPoint: staged},
		mountPoints: []healer.MountPoint{named},
		has:         facts.Dev{Minor: 1},
	},
	"staging, it has another one": {step: healer.Step{MountPoint: staged}, has: facts.Dev{Minor: 1}},
	"it has one from before": {
		step:        healer.Step{MountPoint: mountPoint, Source: renewed},
		mountPoints: []healer.MountPoint{inContainerOf("uid-a", "proven")},
		at:          map[int]facts.Dev{1000: previously},
		want:        true,
	},
	"it had one from before": {
		step:        healer.Step{MountPoint: mountPoint, Source: renewed},
		mountPoints: []healer.MountPoint{inContainerOf("uid-a", "proven")},
		at:          map[int]facts.Dev{1000: renewed},
	},
	"one that is not proven": {
		step:        healer.Step{MountPoint: mountPoint, Source: renewed},
		mountPoints: []healer.MountPoint{inContainerOf("uid-a", "")},
		at:          map[int]facts.Dev{1000: previously},
	},
	"one of another pod": {
		step:        healer.Step{MountPoint: mountPoint, Source: renewed},
		mountPoints: []healer.MountPoint{inContainerOf("uid-b", "proven")},
		at:          map[int]facts.Dev{1000: previously},
	},
	"in the container itself": {
		step: healer.Step{MountPoint: inContainerOf("uid-a", "proven"), Source: renewed},
		at:   map[int]facts.Dev{1000: previously},
		want: true,
	},
	"in a container that has it new": {
		step: healer.Step{MountPoint: inContainerOf("uid-a", "proven"), Source: renewed},
		at:   map[int]facts.Dev{1000: renewed},
	},
	"in a container, another has it": {
		step: healer.Step{MountPoint: inContainerOf("uid-a", "proven"), Source: renewed},
		has:  previously,
	},
	"in a container that was replaced": {
		step: healer.Step{MountPoint: inContainerOf("uid-a", "proven"), Source: renewed},
		at:   map[int]facts.Dev{1001: previously},
	},
}

func TestWhoProvesThatAMountPointIsWanted(t *testing.T) {
	for name, tc := range wantedCases {
		has := holders{pods: map[string]facts.Dev{}, processes: tc.at}
		if !tc.has.Zero() {
			has.pods["uid-a"] = tc.has
		}
		h, err := HolderFor(t.Context(), has, healer.Case{MountPoints: append([]healer.MountPoint{mountPoint}, tc.mountPoints...)}, tc.step)
		if err != nil || (h != nil) != tc.want {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
		if h != nil {
			h.Close()
		}
	}
	if h, err := HolderFor(t.Context(), noHolders{errors.New("no procfs")}, healer.Case{}, healer.Step{MountPoint: mountPoint}); h != nil || err == nil {
		t.Errorf("it cannot be told: %+v, %v", h, err)
	}
}

// With --standalone the caller vouches for the volume's containers, too: it is
// they that have the mount point.
func TestGateInAContainer(t *testing.T) {
	inContainer := containerMountPoint(previously, "proven")
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
		g := Gate{Node: holders{processes: at}, Standalone: tc.standalone}
		p, err := g.Enter(context.Background(), healer.Diagnosis{}, healer.Step{MountPoint: inContainer, Source: renewed})
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
	h := node.Hold(container.Process.Pid)
	if h == nil {
		t.Fatal("no pidfd")
	}
	p := heldPermit{h}
	if err := p.Revalidate(context.Background()); err != nil {
		t.Error(err)
	}
	_ = container.Process.Kill()
	_ = container.Wait()
	if err := p.Revalidate(context.Background()); !errors.Is(err, healer.ErrRefused) {
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
