package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// patience is the deadline of what is to succeed.
	patience = 10 * time.Second
	// brief is the deadline of what may get no answer, and grace how long after it a call
	// may take to return.
	brief = 300 * time.Millisecond
	grace = 2 * time.Second
	// tries is how often one that returns later is called, as on a machine that is busy.
	tries = 3
)

var errGuard = errors.New("the mount point is no longer wanted")

// judgeRuns runs each step that may run: with a guard that fails, twice with one that
// does not, and with tools that do not answer.
func (s suite) judgeRuns(build func() healer.Case, broken report) {
	f, _ := s.Examine(prepared(build))
	for _, step := range f.Steps {
		if step.Refused != "" || step.Run == nil && step.RunBatch == nil {
			continue
		}
		if s.Acts == nil && s.Tools == nil {
			broken("a step is offered, and neither Cases.Acts nor Cases.Tools tells what it does")
			return
		}
		ofStep := func(format string, args ...any) {
			broken("step %q at %q %s", step.Name, step.MountPoint.Path, fmt.Sprintf(format, args...))
		}
		s.runUnwanted(step, ofStep)
		s.runTwice(step, ofStep)
		if s.Tools != nil && !s.returns(silent, func() { _ = run(brief, step, func(context.Context) error { return nil }) }) {
			ofStep("does not return by its deadline when the tools do not answer")
		}
	}
	s.judgePrograms(broken)
}

func (s suite) runUnwanted(step healer.Step, broken report) {
	before := s.acts()
	err := run(patience, step, func(context.Context) error { return errGuard })
	if err == nil {
		broken("succeeds although the guard fails")
	}
	if s.acts() != before {
		broken("acts although the guard fails")
	}
	if leaks(err) {
		broken("quotes a secret in its error")
	}
}

func (s suite) runTwice(step healer.Step, broken report) {
	before := s.acts()
	for _, which := range []string{"first", "again"} {
		asked := false
		err := run(patience, step, func(context.Context) error { asked = true; return nil })
		switch {
		case leaks(err):
			broken("quotes a secret in its error")
		case errors.Is(err, healer.ErrRefused):
		case err != nil:
			broken("fails when it runs %s: %v", which, err)
		case !asked:
			broken("does not ask the guard")
		case s.acts() == before:
			broken("does nothing that Cases.Acts or Cases.Tools sees")
		}
	}
}

// run runs a step within a time.
func run(limit time.Duration, step healer.Step, revalidate func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if step.Run != nil {
		return step.Run(ctx, revalidate)
	}
	return errors.Join(step.RunBatch(ctx, []healer.Step{step}, []func(context.Context) error{revalidate})...)
}

// returns reports whether a call whose deadline is brief returns in time with tools that behave in
// one way meanwhile.
func (s suite) returns(how conduct, call func()) bool {
	if s.Tools != nil {
		s.Tools.behave(how)
		defer s.Tools.behave(asGiven)
	}
	return returns(call)
}

// returns reports whether a call whose deadline is brief returns in time, in one of its tries. One that
// does not return may go on for ever. It panics as the call does.
func returns(call func()) bool {
	for range tries {
		began := time.Now()
		panicked := make(chan string, 1)
		go func() {
			defer close(panicked)
			defer recovered(func(format string, args ...any) { panicked <- fmt.Sprintf(format, args...) })
			call()
		}()
		select {
		case how, did := <-panicked:
			if did {
				panic(how)
			}
			if time.Since(began) <= brief+grace {
				return true
			}
		case <-time.After(brief + patience):
			return false
		}
	}
	return false
}

// acts counts what steps have changed.
func (s suite) acts() int {
	if s.Acts != nil {
		return s.Acts()
	}
	return len(s.Tools.Ran())
}

// judgePrograms reports which programs got a secret where others can read it.
func (s suite) judgePrograms(broken report) {
	if s.Tools == nil {
		return
	}
	for _, p := range s.Tools.Ran() {
		if strings.Contains(strings.Join(slices.Concat(p.Args, p.Env), "\x00"), secret) {
			broken("%s gets a secret in its arguments or environment", p.Path)
		}
	}
}
