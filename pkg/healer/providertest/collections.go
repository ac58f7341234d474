package providertest

import (
	"context"
	"maps"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// collections returns the rules for a provider that asks: what it gets of its tools as
// they are is healthy, it bears tools that fail, and fails for no volume that is not its
// own.
func (s suite) collections(p healer.Collector) map[string]func(report) {
	all := map[string]func(report){
		"collect/healthy": func(broken report) { s.collectHealthy(p, broken) },
	}
	cases := map[string]func() healer.Case{"healthy": s.Healthy}
	maps.Copy(cases, s.Sick)
	for name, build := range cases {
		all["collect/as-given/"+name] = func(broken report) { s.collect(p, build, asGiven, broken) }
		for conduct, how := range conducts {
			if s.Tools != nil {
				all["collect/"+conduct+"/"+name] = func(broken report) { s.collect(p, build, how, broken) }
			}
		}
	}
	return all
}

func (s suite) collectHealthy(p healer.Collector, broken report) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := p.Collect(ctx, prepared(s.Healthy))
	if err != nil {
		broken("Collect of the healthy case fails: %v", err)
		return
	}
	s.judgeHealthy(withEvidence(p, s.Healthy, e), func(format string, args ...any) {
		broken("with what Collect got of Cases.Tools as they are: "+format, args...)
	})
}

// collect reports how Collect breaks the contract on a case, with tools that behave in one way, and
// Examine with what was collected.
func (s suite) collect(p healer.Collector, build func() healer.Case, how conduct, broken report) {
	c := prepared(build)
	var e healer.Evidence
	var err error
	returned := s.returns(how, func() {
		ctx, cancel := context.WithTimeout(context.Background(), brief)
		defer cancel()
		e, err = p.Collect(ctx, c)
	})
	if !returned {
		broken("Collect does not return by its deadline")
		return
	}
	if leaks(err) {
		broken("the error of Collect quotes a secret")
	}
	examined := withEvidence(p, build, e)
	if err != nil {
		examined = build
	}
	if f, _ := s.Examine(prepared(examined)); err != nil && !f.Mine {
		broken("Collect fails for a volume that is not the provider's: %v", err)
	}
	s.judge(examined, broken)
	s.judgePrograms(broken)
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
