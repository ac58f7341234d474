// Package providertest is the conformance suite that every provider passes.
//
// A provider's own test gives Run a healthy case and the cases in which
// something is wrong. The suite adds unusual ones.
// Make the provider with a host that fails the test when it is called: Examine
// calls nothing. What a case of one kind of storage means is for the provider's own
// tests.
package providertest

import (
	"reflect"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// Cases are built anew for each use, and always equal.
type Cases struct {
	// Healthy is a case in which the provider finds nothing.
	Healthy func() healer.Case
	// Sick are cases in which it finds something, by name.
	Sick map[string]func() healer.Case
}

// Run fails the test where a provider breaks the contract of healer.Provider.
func Run(t *testing.T, p healer.Provider, cases Cases) {
	t.Helper()
	expect := func(build func() healer.Case, sick bool) func(*testing.T) {
		return func(t *testing.T) {
			report(t, p, build)
			f, err := p.Examine(build())
			if err != nil || !f.Mine || len(f.Conditions) > 0 != sick {
				t.Errorf("mine: %v, %d conditions, error %v; sick: %v", f.Mine, len(f.Conditions), err, sick)
			}
		}
	}
	t.Run("healthy", expect(cases.Healthy, false))
	for name, build := range cases.Sick {
		t.Run("sick/"+name, expect(build, true))
	}
	for name, spoil := range odd() {
		t.Run("odd/"+name, func(t *testing.T) {
			report(t, p, func() healer.Case {
				c := cases.Healthy()
				spoil(&c)
				return c
			})
		})
	}
}

func report(t *testing.T, p healer.Provider, build func() healer.Case) {
	t.Helper()
	for _, broken := range judge(p, build) {
		t.Error(broken)
	}
}

// secret is in every case where a provider might quote it.
const secret = "providertest-secret"

// judge returns how a provider breaks the contract on a case.
func judge(p healer.Provider, build func() healer.Case) (broken []string) {
	prepared := func() healer.Case {
		c := build()
		c.Volume.Secrets = healer.Secrets{secret: secret}
		c.Volume.Context = healer.Secrets{secret: secret}
		for _, mountPoint := range c.MountPoints {
			for i := range mountPoint.Stack {
				mountPoint.Stack[i].SuperOptions = append(mountPoint.Stack[i].SuperOptions, "password="+secret)
			}
		}
		return c
	}
	c := prepared()
	first, err := p.Examine(c)
	if !reflect.DeepEqual(c, prepared()) {
		broken = append(broken, "Examine changed the case")
	}
	second, err2 := p.Examine(prepared())
	if !reflect.DeepEqual(plain(first), plain(second)) || (err == nil) != (err2 == nil) {
		broken = append(broken, "two findings of one case differ")
	}
	if !first.Mine && len(first.Conditions)+len(first.Steps) > 0 {
		broken = append(broken, "a case that is not the provider's has findings")
	}
	broken = append(broken, judgeConditions(c, first.Conditions)...)
	return append(broken, judgeSteps(c, first.Steps)...)
}

// plain returns a finding without functions, which are never equal.
func plain(f healer.Finding) healer.Finding {
	steps := make([]healer.Step, len(f.Steps))
	for i, s := range f.Steps {
		s.Run, s.RunBatch = nil, nil
		steps[i] = s
	}
	f.Steps = steps
	return f
}
