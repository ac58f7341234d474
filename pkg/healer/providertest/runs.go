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
func (s suite) judgeRuns(build func() healer.Case) (broken []string) {
	f, _ := s.Examine(prepared(build))
	for _, step := range f.Steps {
		if step.Refused != "" || step.Run == nil && step.RunBatch == nil {
			continue
		}
		if s.Acts == nil && s.Tools == nil {
			return append(broken, "a step is offered, and neither Cases.Acts nor Cases.Tools tells what it does")
		}
		for _, rule := range slices.Concat(s.runUnwanted(step), s.runTwice(step), s.runUnanswered(step)) {
			broken = append(broken, fmt.Sprintf("step %q at %q %s", step.Name, step.MountPoint.Path, rule))
		}
	}
	return append(broken, s.judgePrograms()...)
}

func (s suite) runUnwanted(step healer.Step) (broken []string) {
	before := s.acts()
	err := run(patience, step, func(context.Context) error { return errGuard })
	if err == nil {
		broken = append(broken, "succeeds although the guard fails")
	}
	if s.acts() != before {
		broken = append(broken, "acts although the guard fails")
	}
	if leaks(err) {
		broken = append(broken, "quotes a secret in its error")
	}
	return broken
}

func (s suite) runTwice(step healer.Step) (broken []string) {
	before := s.acts()
	for i := range 2 {
		asked := false
		err := run(patience, step, func(context.Context) error { asked = true; return nil })
		switch {
		case leaks(err):
			broken = append(broken, "quotes a secret in its error")
		case errors.Is(err, healer.ErrRefused):
		case err != nil:
			broken = append(broken, fmt.Sprintf("fails when it runs %s: %v", [...]string{"first", "again"}[i], err))
		case !asked:
			broken = append(broken, "does not ask the guard")
		case s.acts() == before:
			broken = append(broken, "does nothing that Cases.Acts or Cases.Tools sees")
		}
	}
	return broken
}

func (s suite) runUnanswered(step healer.Step) (broken []string) {
	if s.Tools == nil {
		return nil
	}
	s.Tools.behave(silent)
	defer s.Tools.behave(asGiven)
	if !returns(func() { _ = run(brief, step, func(context.Context) error { return nil }) }) {
		broken = append(broken, "does not return by its deadline when the tools do not answer")
	}
	return broken
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

// returns reports whether a call whose deadline is brief returns in time, in one of its tries. One that
// does not return may go on for ever. It panics as the call does.
func returns(call func()) bool {
	for range tries {
		began := time.Now()
		returned := make(chan []string, 1)
		go func() {
			returned <- recovered(func() []string { call(); return nil })
		}()
		select {
		case panicked := <-returned:
			if panicked != nil {
				panic(panicked[0])
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

// judgePrograms returns which programs got a secret where others can read it.
func (s suite) judgePrograms() (broken []string) {
	if s.Tools == nil {
		return nil
	}
	for _, p := range s.Tools.Ran() {
		if strings.Contains(strings.Join(slices.Concat(p.Args, p.Env), "\x00"), secret) {
			broken = append(broken, fmt.Sprintf("%s gets a secret in its arguments or environment", p.Path))
		}
	}
	return broken
}
