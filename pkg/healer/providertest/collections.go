package providertest

import (
	"context"
	"fmt"
	"maps"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// collections returns the rules for a provider that asks: what it gets of its tools as
// they are is healthy, it bears tools that fail, and fails for no volume that is not its
// own.
func (s suite) collections(p healer.Collector) map[string]func() []string {
	all := map[string]func() []string{
		"collect/healthy": func() []string { return s.collectHealthy(p) },
	}
	for name, spoil := range odd() {
		all["collect/odd/"+name] = func() []string { return s.collect(p, spoiled(s.Healthy, spoil), asGiven) }
	}
	cases := map[string]func() healer.Case{"healthy": s.Healthy}
	maps.Copy(cases, s.Sick)
	for name, build := range cases {
		all["collect/as-given/"+name] = func() []string { return s.collect(p, build, asGiven) }
		for conduct, how := range conducts {
			if s.Tools != nil {
				all["collect/"+conduct+"/"+name] = func() []string { return s.collect(p, build, how) }
			}
		}
	}
	return all
}

func (s suite) collectHealthy(p healer.Collector) (broken []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := prepared(s.Healthy)
	e, err := p.Collect(ctx, c)
	if err != nil {
		return []string{fmt.Sprintf("Collect of the healthy case fails: %v", err)}
	}
	for _, rule := range s.expect(withEvidence(p, s.Healthy, e), false) {
		broken = append(broken, "with what Collect got of Cases.Tools as they are: "+rule)
	}
	return broken
}

// collect returns how Collect breaks the contract on a case, with tools that behave in
// one way, and Examine with what was collected.
func (s suite) collect(p healer.Collector, build func() healer.Case, how conduct) (broken []string) {
	c := prepared(build)
	if s.Tools != nil {
		s.Tools.behave(how)
		defer s.Tools.behave(asGiven)
	}
	var e healer.Evidence
	var err error
	returned := returns(func() {
		ctx, cancel := context.WithTimeout(context.Background(), brief)
		defer cancel()
		e, err = p.Collect(ctx, c)
	})
	if s.Tools != nil {
		s.Tools.behave(asGiven)
	}
	if !returned {
		return []string{"Collect does not return by its deadline"}
	}
	return append(s.judgeCollected(p, build, e, err), s.judgePrograms()...)
}

func (s suite) judgeCollected(p healer.Collector, build func() healer.Case, e healer.Evidence, err error) (broken []string) {
	if leaks(err) {
		broken = append(broken, "the error of Collect quotes a secret")
	}
	examined := withEvidence(p, build, e)
	if err != nil {
		examined = build
	}
	if f, _ := s.Examine(prepared(examined)); err != nil && !f.Mine {
		broken = append(broken, fmt.Sprintf("Collect fails for a volume that is not the provider's: %v", err))
	}
	return append(broken, s.violations(examined)...)
}

// withEvidence returns the cases of build with evidence.
func withEvidence(p healer.Provider, build func() healer.Case, e healer.Evidence) func() healer.Case {
	return func() healer.Case {
		c := build()
		c.Evidence = nil
		if e != nil {
			c.Evidence = map[string]healer.Evidence{p.Name(): e}
		}
		return c
	}
}
