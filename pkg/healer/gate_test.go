package healer

import (
	"context"
	"errors"
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

func (n noHolders) Holder(string, host.Dev) (*host.Holder, error) { return nil, n.err }

func TestGateThatCannotTellRefuses(t *testing.T) {
	blind := errors.New("no procfs")
	g := WantedGate{Node: noHolders{blind}, Standalone: true}
	if _, err := g.Enter(context.Background(), Diagnosis{}, Step{Place: Place{Named: true}}); !errors.Is(err, blind) {
		t.Errorf("got %v", err)
	}
}

func TestPermitEndsWithItsContainer(t *testing.T) {
	container := exec.Command("sleep", "60")
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	h, err := holder(t, "uid-a", disk, container.Process.Pid)
	if err != nil || h == nil {
		t.Fatal(h, err)
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
