// Package providertest is the conformance suite that every provider passes.
//
// A provider's own test gives Run a healthy case, which Volume makes, and the cases in
// which something is wrong. The suite adds unusual ones, runs the steps that the
// provider offers, and has it collect evidence from tools that fail. What a case of one
// kind of storage means is for the provider's own tests.
package providertest

import (
	"errors"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// Cases are built anew for each use, and always equal.
type Cases struct {
	// Healthy is a case in which the provider finds nothing.
	Healthy func() healer.Case
	// Sick are cases in which it finds something, by name. If the name is
	// CamelCase, it is that of a reason, and this is what it finds.
	Sick map[string]func() healer.Case
	// Tools are those that the provider was made with; nil for one that uses none. What
	// Collect finds with them as they are is healthy.
	Tools *Tools
	// Acts counts what the provider's steps have changed, for one that has a fake host.
	// Without it a step acts by running a program of Tools.
	Acts func() int
}

// Run fails the test where a provider breaks the contract of healer.Provider.
func Run(t *testing.T, p healer.Provider, cases Cases) {
	t.Helper()
	rules := suite{p, cases}.rules()
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		t.Run(name, func(t *testing.T) { rules[name](t.Errorf) })
	}
}

type suite struct {
	healer.Provider
	Cases
}

// report is told how a provider breaks the contract, as testing.T.Errorf is.
type report = func(format string, args ...any)

// rules returns what is to be checked, by name.
func (s suite) rules() map[string]func(report) {
	all := map[string]func(report){
		"healthy": func(broken report) {
			s.judge(s.Healthy, broken)
			s.judgeHealthy(s.Healthy, broken)
		},
	}
	for name, build := range s.Sick {
		all["sick/"+name] = func(broken report) {
			s.judge(build, broken)
			s.judgeSick(name, build, broken)
			s.judgeRuns(build, broken)
		}
	}
	asks, _ := s.Provider.(healer.Collector)
	for _, changes := range []map[string]Change{odd, oddAlone} {
		for name, spoil := range changes {
			build := spoiled(s.Healthy, spoil)
			all["odd/"+name] = func(broken report) { s.judge(build, broken) }
			if asks != nil {
				all["collect/odd/"+name] = func(broken report) { s.collect(asks, build, asGiven, broken) }
			}
		}
	}
	for sick, build := range s.Sick {
		for name, spoil := range odd {
			all["sick/"+sick+"/"+name] = func(broken report) { s.judge(spoiled(build, spoil), broken) }
		}
	}
	if asks != nil {
		maps.Copy(all, s.collections(asks))
	}
	for name, check := range all {
		all[name] = func(broken report) {
			defer recovered(broken)
			check(broken)
		}
	}
	return all
}

// spoiled returns the cases of build with a change.
func spoiled(build func() healer.Case, spoil Change) func() healer.Case {
	return func() healer.Case {
		c := build()
		spoil(&c)
		return c
	}
}

// recovered reports a panic of the provider, for a defer: the other checks go on.
func recovered(broken report) {
	if p := recover(); p != nil {
		broken("panics: %v\n%s", p, debug.Stack())
	}
}

// secret is in every case where a provider might quote it.
const secret = "providertest-secret"

// prepared returns a case with secrets.
func prepared(build func() healer.Case) healer.Case {
	c := build()
	secrets := healer.Secrets{secret: secret}
	for key := range c.Volume.Secrets {
		secrets[key] = secret
	}
	c.Volume.Secrets = secrets
	context := healer.Secrets{secret: secret}
	maps.Copy(context, c.Volume.Context)
	c.Volume.Context = context
	for _, mountPoint := range c.MountPoints {
		for i := range mountPoint.Stack {
			mountPoint.Stack[i].SuperOptions = append(mountPoint.Stack[i].SuperOptions, "password="+secret)
		}
	}
	return c
}

// judge reports how a provider breaks the contract on any case.
func (s suite) judge(build func() healer.Case, broken report) {
	c, again := prepared(build), prepared(build)
	used := s.used()
	first, err := s.Examine(c)
	second, err2 := s.Examine(again)
	if s.used() != used {
		broken("Examine used the tools, or changed something")
	}
	if !reflect.DeepEqual(c, prepared(build)) {
		broken("Examine changed the case")
	}
	if !reflect.DeepEqual(plain(first), plain(second)) || (err == nil) != (err2 == nil) {
		broken("two findings of one case differ")
	}
	if leaks(err) {
		broken("the error of Examine quotes a secret")
	}
	if !first.Mine && len(first.Conditions)+len(first.Steps) > 0 {
		broken("a case that is not the provider's has findings")
	}
	judgeConditions(c, first.Conditions, broken)
	judgeSteps(c, first.Steps, broken)
}

// used counts what the provider did to the node, questions included.
func (s suite) used() int {
	used := 0
	if s.Acts != nil {
		used += s.Acts()
	}
	if s.Tools != nil {
		used += s.Tools.used()
	}
	return used
}

// finding returns what a provider says of a case that is its own.
func (s suite) finding(build func() healer.Case, broken report) healer.Finding {
	f, err := s.Examine(prepared(build))
	switch {
	case err != nil:
		broken("Examine fails: %v", err)
	case !f.Mine:
		broken("Finding.Mine is false: the case is not the provider's")
	}
	return f
}

func (s suite) judgeHealthy(build func() healer.Case, broken report) {
	if f := s.finding(build, broken); len(f.Conditions) > 0 {
		broken("a healthy case has conditions %+v", f.Conditions)
	}
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

// leaks reports whether an error quotes a secret. What a program wrote may be in an
// error: the tools leave it out where the program was given secrets.
func leaks(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	if exit := (*healer.ExitError)(nil); errors.As(err, &exit) {
		text = strings.ReplaceAll(text, exit.Text, "")
	}
	return strings.Contains(text, secret)
}
