// Package providertest is the conformance suite that every provider passes.
//
// A provider's own test gives Run a healthy case, which Volume makes, and the cases in
// which something is wrong. The suite adds unusual ones, runs the steps that the
// provider offers, and has it collect evidence from tools that fail. What a case of one
// kind of storage means is for the provider's own tests.
package providertest

import (
	"errors"
	"fmt"
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
		t.Run(name, func(t *testing.T) {
			for _, broken := range rules[name]() {
				t.Error(broken)
			}
		})
	}
}

// suite is one provider with its cases.
type suite struct {
	healer.Provider
	Cases
}

// rules returns what is to be checked, by name. Each check returns how the provider
// breaks the contract.
func (s suite) rules() map[string]func() []string {
	all := map[string]func() []string{
		"healthy": func() []string { return append(s.violations(s.Healthy), s.expect(s.Healthy, false)...) },
	}
	for name, build := range s.Sick {
		all["sick/"+name] = func() []string {
			return slices.Concat(s.violations(build), s.expect(build, true), s.judgeFault(name, build), s.judgeRuns(build))
		}
	}
	for name, spoil := range odd() {
		all["odd/"+name] = func() []string { return s.violations(spoiled(s.Healthy, spoil)) }
	}
	for sick, build := range s.Sick {
		for name, spoil := range oddWhenSick() {
			all["sick/"+sick+"/"+name] = func() []string { return s.violations(spoiled(build, spoil)) }
		}
	}
	if p, asks := s.Provider.(healer.Collector); asks {
		maps.Copy(all, s.collections(p))
	}
	for name, check := range all {
		all[name] = func() []string { return recovered(check) }
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

// recovered returns what a check finds. A panic of the provider is a finding, and the
// other checks go on.
func recovered(check func() []string) (broken []string) {
	defer func() {
		if p := recover(); p != nil {
			broken = append(broken, fmt.Sprintf("panics: %v\n%s", p, debug.Stack()))
		}
	}()
	return check()
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
	context := maps.Clone(c.Volume.Context)
	if context == nil {
		context = healer.Secrets{}
	}
	context[secret] = secret
	c.Volume.Context = context
	for _, mountPoint := range c.MountPoints {
		for i := range mountPoint.Stack {
			mountPoint.Stack[i].SuperOptions = append(mountPoint.Stack[i].SuperOptions, "password="+secret)
		}
	}
	return c
}

// violations returns how a provider breaks the contract on a case.
func (s suite) violations(build func() healer.Case) (broken []string) {
	c, again := prepared(build), prepared(build)
	used := s.used()
	first, err := s.Examine(c)
	second, err2 := s.Examine(again)
	if s.used() != used {
		broken = append(broken, "Examine used the tools, or changed something")
	}
	if !reflect.DeepEqual(c, prepared(build)) {
		broken = append(broken, "Examine changed the case")
	}
	if !reflect.DeepEqual(plain(first), plain(second)) || (err == nil) != (err2 == nil) {
		broken = append(broken, "two findings of one case differ")
	}
	if leaks(err) {
		broken = append(broken, "the error of Examine quotes a secret")
	}
	if !first.Mine && len(first.Conditions)+len(first.Steps) > 0 {
		broken = append(broken, "a case that is not the provider's has findings")
	}
	broken = append(broken, judgeConditions(c, first.Conditions)...)
	return append(broken, judgeSteps(c, first.Steps)...)
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

// expect returns whether a case that is the provider's is not taken for what it is.
func (s suite) expect(build func() healer.Case, sick bool) []string {
	f, err := s.Examine(prepared(build))
	switch {
	case err != nil:
		return []string{fmt.Sprintf("Examine fails: %v", err)}
	case !f.Mine:
		return []string{"Finding.Mine is false: the case is not the provider's"}
	case !sick && len(f.Conditions) > 0:
		return []string{fmt.Sprintf("a healthy case has conditions %+v", f.Conditions)}
	case sick && len(f.Conditions) == 0:
		return []string{"a sick case has no condition"}
	default:
		return nil
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
