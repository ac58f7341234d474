package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// busyDriver is the error of a driver that may still be at work.
type busyDriver struct{ error }

func (busyDriver) Class() api.Class { return api.Class{Tier: api.Transient, Type: api.TypeExecution} }

func (busyDriver) Ended() <-chan struct{} {
	ended := make(chan struct{})
	close(ended)
	return ended
}

// delegate adds a step of the driver, which has no source, and the generic one.
func (b *fixture) delegate(answer error) (generic *int) {
	b.steps = append(b.steps, healer.Step{
		Name: "delegate", MountPoint: healer.MountPoint{Role: healer.RoleTarget, Path: podA}, Cost: healer.Delegate, Heals: []healer.Reason{healer.NotMounted},
		Run: func(context.Context, func(context.Context) error) error { return answer },
	})
	generic = new(int)
	b.offer("rebind", podA, healer.Rebind, func() error { *generic++; return nil })
	return generic
}

func TestTheDriverHealsFirst(t *testing.T) {
	refused := &healer.Error{Kind: healer.KindUnauthenticated, Text: "the secrets were refused"}
	for name, tc := range map[string]struct {
		answer error
		steps  string
		audit  string
		err    error
	}{
		"it says that it did, and did not": {steps: "delegate rebind", audit: "done"},
		"it failed":                        {answer: errors.New("no"), steps: "delegate rebind", audit: "retriable/unknown: no"},
		"it may be at work":                {answer: busyDriver{errors.New("busy")}, steps: "delegate", audit: "transient/execution: busy"},
		"it refused the secrets":           {answer: refused, audit: "terminal/permission: the secrets were refused", err: refused},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.healthy()
			b.fall(podA, healer.NotMounted)
			generic := b.delegate(tc.answer)
			r, err := b.engine.Heal(t.Context(), volume)
			if !errors.Is(err, tc.err) || err == nil && (outcomes(r) != tc.steps || r.Verdict() != healer.Abnormal) {
				t.Errorf("%s, %v", outcomes(r), err)
			}
			if len(b.notes.after) == 0 || b.notes.after[0].Step != "delegate" || b.notes.after[0].Outcome != tc.audit {
				t.Errorf("audit: %+v", b.notes.after)
			}
			if (*generic == 0) != (tc.steps == "delegate") {
				t.Errorf("the generic step ran %d times", *generic)
			}
			if _, err := b.engine.Heal(t.Context(), volume); healer.KindOf(err) == healer.KindBusy {
				t.Error("the volume stays busy")
			}
		})
	}
}

// Refused secrets count only if nothing else heals.
func TestRefusedSecretsOfAVolumeThatIsHealedOtherwise(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.delegate(&healer.Error{Kind: healer.KindUnauthenticated})
	b.steps[1].Run = func(context.Context, func(context.Context) error) error { return b.cure(podA)() }
	if r := b.heal(volume); r.Verdict() != healer.Healed || outcomes(r) != "delegate rebind" {
		t.Errorf("%s: %s", r.Verdict(), outcomes(r))
	}
}

// A driver may act on what nothing here may.
func TestTheDriverHealsWhatIsNotAcute(t *testing.T) {
	b := newFixture(t, func(c *Config) {
		c.Providers = append(c.Providers, provider{"vendor", func(healer.Case) (healer.Finding, error) {
			return healer.Finding{Mine: true, Conditions: []healer.Condition{{Status: healer.Degraded, Reason: healer.Disconnected, MountPoint: podA}}}, nil
		}})
	})
	b.delegate(nil)
	for i := range b.steps {
		b.steps[i].Heals = []healer.Reason{healer.Disconnected}
	}
	b.heal(volume) // it is recorded: degraded is usable
	if r := b.heal(volume); outcomes(r) != "delegate" {
		t.Errorf("%s, %+v", outcomes(r), r.Refused)
	}
}

// Whose mount points these are has to be proven before a driver is told to act.
func TestTheDriverHealsOnlyWhatIsProven(t *testing.T) {
	b := newFixture(t)
	b.fall(podA, healer.NotMounted)
	b.delegate(nil)
	r := b.heal(volume)
	if outcomes(r) != "" || len(r.Refused) != 2 {
		t.Errorf("%s, %+v", outcomes(r), r.Refused)
	}
}

// excluder is a driver that may still be at work from an earlier call.
type excluder struct {
	provider
	why string
}

func (x *excluder) Excludes(healer.Case) string { return x.why }

func TestNoOtherStepBesideADriverAtWork(t *testing.T) {
	own := 0
	x := &excluder{provider{"vendor", nil}, "the driver may still be at work"}
	x.examine = func(healer.Case) (healer.Finding, error) {
		return healer.Finding{Mine: true, Steps: []healer.Step{{
			Name: "delegate", MountPoint: healer.MountPoint{Role: healer.RoleTarget, Path: podA}, Cost: healer.Delegate, Heals: []healer.Reason{healer.NotMounted},
			Run: func(context.Context, func(context.Context) error) error { own++; return nil },
		}}}, nil
	}
	b := newFixture(t, func(c *Config) { c.Providers = append(c.Providers, x) })
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.offer("rebind", podA, healer.Rebind, b.cure(podA))
	if r := b.heal(volume); outcomes(r) != "delegate" || own != 1 || len(r.Refused) != 1 || r.Refused[0].Why != x.why {
		t.Errorf("%s, %+v", outcomes(r), r.Refused)
	}
	x.examine = func(healer.Case) (healer.Finding, error) { return healer.Finding{}, errors.New("broken") }
	if r := b.heal(volume); outcomes(r) != "" {
		t.Errorf("it cannot examine: %s", outcomes(r))
	}
	x.why = ""
	if r := b.heal(volume); outcomes(r) != "rebind" {
		t.Errorf("it has ended: %s", outcomes(r))
	}
}
