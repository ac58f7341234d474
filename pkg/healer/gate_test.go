package healer

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

func TestWantedGate(t *testing.T) {
	for _, tc := range []struct {
		name                      string
		runs, standalone, isNamed bool
		want                      string // why not; empty: it may
	}{
		{name: "a container has it", runs: true},
		{name: "a container has it, nobody named it", runs: true, standalone: true},
		{name: "the caller vouches", standalone: true, isNamed: true},
		{name: "the caller vouches for another place", standalone: true, want: "vouches only for the path it names"},
		{name: "nothing proves it", isNamed: true, want: "nothing proves"},
	} {
		w := newWorld(t)
		if tc.runs {
			w.pods["uid-a"] = disk
		}
		g := WantedGate{Node: w, Standalone: tc.standalone}
		p, err := g.Enter(context.Background(), Diagnosis{}, Step{Place: Place{PodUID: "uid-a", Named: tc.isNamed}, Source: disk})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err == nil {
			if err := p.Still(context.Background()); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			p.Leave(nil)
		}
	}
}

func TestWantedGateForAWrite(t *testing.T) {
	place := Place{PodUID: "uid-a", Path: podA, Stack: []host.Mount{{Dev: disk, Path: podA}}}
	staged := Place{Path: staging, Stack: []host.Mount{{Dev: disk, Path: staging}}}
	for _, tc := range []struct {
		name       string
		runs       host.Dev
		place      Place
		standalone bool
		want       string // why not; empty: it may
	}{
		{name: "a container has it", runs: disk, place: place},
		{name: "a container has another one", runs: host.Dev{Major: 9}, place: place, want: "no running container"},
		{name: "nobody runs", place: place, want: "no running container"},
		{name: "the staged place", runs: disk, place: staged, want: "no running container"},
		{name: "there is no orchestrator", place: staged, standalone: true},
	} {
		w := newWorld(t)
		if !tc.runs.Zero() {
			w.pods["uid-a"] = tc.runs
		}
		g := WantedGate{Node: w, Standalone: tc.standalone}
		if err := g.Write(context.Background(), Case{}, tc.place, true); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	blind := errors.New("no procfs")
	if err := (WantedGate{Node: noHolders{blind}}).Write(context.Background(), Case{}, place, true); !errors.Is(err, blind) {
		t.Errorf("nobody can tell: %v", err)
	}
}

type noHolders struct{ err error }

func (n noHolders) Holder(context.Context, string, host.Dev) (*host.Holder, error) {
	return nil, n.err
}
func (noHolders) HolderAt(context.Context, host.ContainerMount) *host.Holder { return nil }

func TestGateThatCannotTellRefuses(t *testing.T) {
	blind := errors.New("no procfs")
	g := WantedGate{Node: noHolders{blind}, Standalone: true}
	if _, err := g.Enter(context.Background(), Diagnosis{}, Step{Place: Place{Named: true}}); !errors.Is(err, blind) {
		t.Errorf("got %v", err)
	}
}

// housed finds containers that have these superblocks, each by its process.
type housed struct {
	*world
	at map[int]host.Dev
}

func (h housed) HolderAt(_ context.Context, m host.ContainerMount) *host.Holder {
	if h.at[m.PID] != m.Mount.Dev {
		return nil
	}
	return host.Hold(os.Getpid())
}

func TestWhoProvesThatAPlaceIsWanted(t *testing.T) {
	container := func(podUID, proof string) Place {
		p := insideOf(0, formerly, proof)
		p.PodUID, p.Inside.PodUID = podUID, podUID
		return p
	}
	place := Place{Role: Published, Path: podA, PodUID: "uid-a", Stack: []host.Mount{{Dev: formerly}}}
	for name, tc := range map[string]struct {
		step   Step
		places []Place
		has    host.Dev         // what a container of pod a has, by its table
		at     map[int]host.Dev // what it has, by its process
		want   bool
	}{
		"it has what is brought":           {step: Step{Place: place, Source: renewed}, has: renewed, want: true},
		"it has what is taken away":        {step: Step{Place: place, Source: renewed}, has: formerly, want: true},
		"it has another one":               {step: Step{Place: place, Source: renewed}, has: host.Dev{Minor: 1}},
		"nobody runs":                      {step: Step{Place: place, Source: renewed}},
		"nothing is there":                 {step: Step{Place: Place{PodUID: "uid-a"}, Source: renewed}, has: host.Dev{Minor: 1}},
		"it has one from before":           {step: Step{Place: place, Source: renewed}, places: []Place{container("uid-a", "proven")}, at: map[int]host.Dev{1000: formerly}, want: true},
		"it had one from before":           {step: Step{Place: place, Source: renewed}, places: []Place{container("uid-a", "proven")}, at: map[int]host.Dev{1000: renewed}},
		"one that is not proven":           {step: Step{Place: place, Source: renewed}, places: []Place{container("uid-a", "")}, at: map[int]host.Dev{1000: formerly}},
		"one of another pod":               {step: Step{Place: place, Source: renewed}, places: []Place{container("uid-b", "proven")}, at: map[int]host.Dev{1000: formerly}},
		"in the container itself":          {step: Step{Place: container("uid-a", "proven"), Source: renewed}, at: map[int]host.Dev{1000: formerly}, want: true},
		"in a container that has it new":   {step: Step{Place: container("uid-a", "proven"), Source: renewed}, at: map[int]host.Dev{1000: renewed}},
		"in a container, another has it":   {step: Step{Place: container("uid-a", "proven"), Source: renewed}, has: formerly},
		"in a container that was replaced": {step: Step{Place: container("uid-a", "proven"), Source: renewed}, at: map[int]host.Dev{1001: formerly}},
	} {
		w := newWorld(t)
		if !tc.has.Zero() {
			w.pods["uid-a"] = tc.has
		}
		h, err := HolderFor(t.Context(), housed{w, tc.at}, Case{Places: append([]Place{place}, tc.places...)}, tc.step)
		if err != nil || (h != nil) != tc.want {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
		if h != nil {
			h.Close()
		}
	}
	if h, err := HolderFor(t.Context(), noHolders{errors.New("no procfs")}, Case{}, Step{Place: place}); h != nil || err == nil {
		t.Errorf("nobody can tell: %+v, %v", h, err)
	}
}

// With --standalone the caller vouches for the volume's containers, too: it is
// they that have the place.
func TestWantedGateInAContainer(t *testing.T) {
	inside := insideOf(0, formerly, "proven")
	for name, tc := range map[string]struct {
		standalone, runs bool
		want             bool
	}{
		"it runs":                          {runs: true, want: true},
		"it has ended":                     {},
		"nobody can tell, but they vouch":  {standalone: true, want: true},
		"it runs, and there is no cluster": {standalone: true, runs: true, want: true},
	} {
		at := map[int]host.Dev{}
		if tc.runs {
			at[inside.Inside.PID] = formerly
		}
		g := WantedGate{Node: housed{newWorld(t), at}, Standalone: tc.standalone}
		p, err := g.Enter(context.Background(), Diagnosis{}, Step{Place: inside, Source: renewed})
		if (err == nil) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if err := p.Still(context.Background()); err != nil {
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
	if err := p.Still(context.Background()); err != nil {
		t.Error(err)
	}
	_ = container.Process.Kill()
	_ = container.Wait()
	if err := p.Still(context.Background()); !errors.Is(err, ErrRefused) {
		t.Errorf("the container has ended: %v", err)
	}
	p.Leave(nil)
}

func TestVouchedPermitEndsWithItsCall(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := (vouchedPermit{}).Still(ctx); err == nil {
		t.Error("it outlives the call")
	}
}
