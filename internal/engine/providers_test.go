package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"testing"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/healer"
)

type hostQuestion = node.InspectQuery

// provider is one function.
type provider struct {
	name    string
	examine func(healer.Case) (healer.Finding, error)
}

func (p provider) Name() string { return p.name }

func (p provider) Examine(c healer.Case) (healer.Finding, error) { return p.examine(c) }

// panicker finds and excludes nothing, and may panic.
type panicker struct {
	name     string
	excludes func()
}

func (x panicker) Name() string { return x.name }

func (panicker) Examine(healer.Case) (healer.Finding, error) { return healer.Finding{Mine: true}, nil }

func (x panicker) Excludes(healer.Case) string {
	x.excludes()
	return ""
}

func TestOneProvidersErrorHidesNoOthersFinding(t *testing.T) {
	for name, examine := range map[string]func(healer.Case) (healer.Finding, error){
		"error": func(healer.Case) (healer.Finding, error) { return healer.Finding{}, errors.New("cannot look") },
		"panic": func(healer.Case) (healer.Finding, error) { panic("bug") },
		// What is told panics then where nobody survives it.
		"nil pointer": func(healer.Case) (healer.Finding, error) { return healer.Finding{}, (*fs.PathError)(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			broken := provider{"broken", examine}
			b := newFixture(t, func(c *Config) { c.Providers = append([]healer.Provider{broken}, c.Providers...) })
			r := b.heal(volume)
			if r.Verdict() != healer.Abnormal || len(r.After.Failures) != 1 || r.After.Failures[0].Provider != "broken" || b.notes.saves != 0 || len(r.After.AllConditions()) != 1 {
				t.Errorf("with a failed provider: %s, %+v, %d saves", r.Verdict(), r.After.Failures, b.notes.saves)
			}
			b.fall(podA, healer.NotMounted)
			if r = b.heal(volume); len(r.After.Conditions) != 1 || len(r.After.Failures) != 1 {
				t.Errorf("%+v", r.After)
			}
		})
	}
}

// What a provider would have found may forbid another one's step: after a panic of Examine none runs.
func TestNoStepAfterAPanicOfExamine(t *testing.T) {
	panics := false
	bad := provider{"bad", func(healer.Case) (healer.Finding, error) {
		if panics {
			panic("bug")
		}
		return healer.Finding{}, nil
	}}
	b := newFixture(t, func(c *Config) { c.Providers = append([]healer.Provider{bad}, c.Providers...) })
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.offer("rebind", podA, healer.Rebind, b.cure(podA))
	panics = true
	if r := b.heal(volume); len(r.Steps) > 0 || len(r.Refused) != 1 || len(r.After.Conditions) != 1 {
		t.Errorf("%+v", r)
	}
	panics = false
	if r := b.heal(volume); r.Verdict() != healer.Healed {
		t.Errorf("without the panic: %s", r.Verdict())
	}
}

func TestNotMineCountsForNothing(t *testing.T) {
	foreign := provider{"foreign", func(healer.Case) (healer.Finding, error) {
		return healer.Finding{Conditions: []healer.Condition{{Reason: healer.IOError}}, Steps: []healer.Step{{Name: "s"}}}, nil
	}}
	b := newFixture(t, func(c *Config) { c.Providers = append(c.Providers, foreign) })
	if r := b.heal(volume); r.Verdict() != healer.Healthy {
		t.Errorf("%s: %+v", r.Verdict(), r.After.Conditions)
	}
}

func TestPanicIsAnErrorAndFreesTheVolume(t *testing.T) {
	panics := true
	bad := panicker{"bad", func() {
		if panics {
			panic("bug")
		}
	}}
	b := newFixture(t, func(c *Config) { c.Providers = []healer.Provider{bad} })
	_, err := b.engine.Heal(context.Background(), volume)
	if err == nil || healer.KindOf(err) != healer.KindUnknown {
		t.Fatalf("got %v", err)
	}
	panics = false
	b.healthy()
}

// A step that panics has changed who knows what: the log says that it ended,
// and its permit is given back.
func TestPanicInAStep(t *testing.T) {
	for name, run := range map[string]func() error{
		"panic":       func() error { panic("bug") },
		"nil pointer": func() error { return (*json.SyntaxError)(nil) }, // its text panics
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.healthy()
			b.fall(podA, healer.NotMounted)
			b.offer("rebind", podA, healer.Rebind, run)
			r, err := b.engine.Heal(context.Background(), volume)
			if err == nil && r.Verdict() != healer.Abnormal {
				t.Errorf("%s", r.Verdict())
			}
			if len(b.notes.left) != b.notes.entered {
				t.Errorf("%d permits were given, %d came back", b.notes.entered, len(b.notes.left))
			}
			if len(b.notes.after) != 1 || b.notes.after[0].Outcome == "done" {
				t.Errorf("audited after the panic: %+v", b.notes.after)
			}
			b.steps = nil
			b.recover(podA)
			b.healthy()
		})
	}
}
