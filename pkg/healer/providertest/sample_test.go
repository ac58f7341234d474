package providertest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const sessionLost healer.Reason = "SessionLost"

const reconnect = "/sbin/reconnect"

// sample asks a file, and runs a program. Its fields spoil what it does.
type sample struct {
	tools healer.Tools
	// collect and run replace what it does, unless they are nil.
	collect func(context.Context, healer.Case) (healer.Evidence, error)
	run     func(context.Context, func(context.Context) error) error
	// change spoils what it finds.
	change func(healer.Case, *healer.Finding)
}

func (sample) Name() string { return "sample" }

func (s sample) Collect(ctx context.Context, c healer.Case) (healer.Evidence, error) {
	if s.collect != nil {
		return s.collect(ctx, c)
	}
	if !ours(c) {
		return nil, nil
	}
	text, err := s.tools.ReadFile(ctx, "/run/sample", "health", 64)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return string(text), err
}

func ours(c healer.Case) bool {
	staged, _ := c.Staged()
	top, mounted := staged.Top()
	return mounted && top.FSType == "fuse.sample"
}

func (s sample) Examine(c healer.Case) (healer.Finding, error) {
	f := healer.Finding{Mine: ours(c)}
	if f.Mine && c.Evidence["sample"] == "lost" {
		s.lost(c, &f)
	}
	if f.Mine && s.change != nil {
		s.change(c, &f)
	}
	return f, nil
}

func (s sample) lost(c healer.Case, f *healer.Finding) {
	staged, _ := c.Staged()
	f.Conditions = []healer.Condition{{
		Status: healer.Inaccessible, Reason: sessionLost, MountPoint: staged.Path, Superblock: staged.Dev(),
		Message: "the health file says lost", Advice: "look at the daemon", Acute: true,
	}}
	run := s.run
	if run == nil {
		run = func(ctx context.Context, revalidate func(context.Context) error) error {
			if err := revalidate(ctx); err != nil {
				return err
			}
			_, err := s.tools.Run(ctx, healer.Program{Path: reconnect})
			return err
		}
	}
	f.Steps = []healer.Step{{
		Name: "reconnect", MountPoint: staged, Cost: healer.Restage, Heals: []healer.Reason{sessionLost}, Run: run,
	}}
}

// node returns tools for a sample, and its cases.
func node() (*Tools, Cases) {
	tools := &Tools{
		Programs: map[string]Program{reconnect: Succeeds},
	}
	lost := &Tools{Files: map[string]string{"/run/sample/health": "lost"}}
	return tools, Cases{
		Tools:   tools,
		Healthy: Volume("driver.example", "fuse.sample"),
		Sick: map[string]func() healer.Case{
			"SessionLost": Volume("driver.example", "fuse.sample", Collect(sample{tools: lost})),
		},
	}
}

func TestSamplePasses(t *testing.T) {
	tools, cases := node()
	Run(t, sample{tools: tools}, cases)
}

// What a step gets wrong.

func (s sample) ignoresGuard(ctx context.Context, _ func(context.Context) error) error {
	_, err := s.tools.Run(ctx, healer.Program{Path: reconnect})
	return err
}

func (s sample) argues(ctx context.Context, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	_, err := s.tools.Run(ctx, healer.Program{Path: reconnect, Args: []string{"--token=" + secret}})
	return err
}

func (s sample) deaf(context.Context, func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := s.tools.Run(ctx, healer.Program{Path: reconnect}) //nolint:contextcheck // that is what it gets wrong
	return err
}

func quotes(context.Context, func(context.Context) error) error {
	return errors.New("cannot reconnect with " + secret)
}

// once returns a step that cannot run again.
func (s sample) once() func(context.Context, func(context.Context) error) error {
	ran := false
	return func(ctx context.Context, revalidate func(context.Context) error) error {
		if err := revalidate(ctx); err != nil {
			return err
		}
		if ran {
			return errors.New("it is connected already")
		}
		ran = true
		return s.ignoresGuard(ctx, revalidate)
	}
}

// What Collect and Examine get wrong.

func (sample) quotesCase(_ context.Context, c healer.Case) (healer.Evidence, error) {
	return nil, errors.New("cannot log in with " + c.Volume.Secrets[secret])
}

func (s sample) asksSocket(ctx context.Context, _ healer.Case) (healer.Evidence, error) {
	conn, err := s.tools.Dial(ctx, "/run/sample.sock")
	if err != nil {
		return nil, nil
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	return nil, err
}

func (s sample) asksForAll(ctx context.Context, _ healer.Case) (healer.Evidence, error) {
	return s.tools.ReadFile(ctx, "/run/sample", "health", 64)
}

func (s sample) raw(ctx context.Context, _ healer.Case) (healer.Evidence, error) {
	text, _ := s.tools.ReadFile(ctx, "/run/sample", "health", 1<<20)
	return string(text), nil
}

func quotesEvidence(c healer.Case, f *healer.Finding) {
	if text, _ := c.Evidence["sample"].(string); text != "" && len(f.Conditions) == 0 {
		f.Conditions = []healer.Condition{{
			Status: healer.Degraded, Reason: sessionLost, MountPoint: Staging, Message: "the health file says " + text, Advice: "a",
		}}
	}
}

// asksProgram returns what a program says, and what it says when it fails.
func (s sample) asksProgram(ctx context.Context, c healer.Case) (healer.Evidence, error) {
	if !ours(c) {
		return nil, nil
	}
	out, _ := s.tools.Run(ctx, healer.Program{Path: reconnect})
	return out, nil
}

// refusesWithEvidence refuses the step of a lost session with what Collect got.
func refusesWithEvidence(c healer.Case, f *healer.Finding) {
	if text, _ := c.Evidence["sample"].(string); text != "" {
		sample{}.lost(c, f)
		f.Steps[0].Run, f.Steps[0].Refused = nil, "the program says "+text
	}
}

// What Examine gets wrong when it finds something.

func readsRecord(c healer.Case, f *healer.Finding) {
	if len(f.Conditions) > 0 {
		f.Conditions[0].Message = "lost since " + c.Record.Source
	}
}

func quotesSource(c healer.Case, f *healer.Finding) {
	if mp, _ := c.Staged(); len(f.Conditions) > 0 {
		f.Conditions[0].Message = "the session of " + mp.Stack[0].Source + " is lost"
	}
}

func (s sample) reads(healer.Case, *healer.Finding) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, _ = s.tools.ReadFile(ctx, "/run/sample", "health", 64)
}

// Each breaks one rule for steps, faults or evidence.
func TestBrokenSamplesAreCaught(t *testing.T) {
	for want, spoil := range map[string]func(*sample, *Cases){
		"is not found, but": func(_ *sample, c *Cases) { c.Sick["NotMounted"] = c.Sick["SessionLost"] },
		"no step there heals it": func(s *sample, _ *Cases) {
			s.change = func(_ healer.Case, f *healer.Finding) { f.Steps = nil }
		},
		"neither Cases.Acts nor Cases.Tools":      func(_ *sample, c *Cases) { c.Tools = nil },
		"Cases.Acts or Cases.Tools sees":          func(_ *sample, c *Cases) { c.Acts = func() int { return 0 } },
		"Examine used the tools":                  func(s *sample, _ *Cases) { s.change = s.reads },
		"succeeds although the guard":             func(s *sample, _ *Cases) { s.run = s.ignoresGuard },
		"acts although the guard fails":           func(s *sample, _ *Cases) { s.run = s.ignoresGuard },
		"does not ask the guard":                  func(s *sample, _ *Cases) { s.run = s.ignoresGuard },
		"fails when it runs again":                func(s *sample, _ *Cases) { s.run = s.once() },
		"quotes a secret in its error":            func(s *sample, _ *Cases) { s.run = quotes },
		"in its arguments or environment":         func(s *sample, _ *Cases) { s.run = s.argues },
		"when the tools do not answer":            func(s *sample, _ *Cases) { s.run = s.deaf },
		"the error of Collect quotes":             func(s *sample, _ *Cases) { s.collect = s.quotesCase },
		"Collect does not return by its deadline": func(s *sample, _ *Cases) { s.collect = s.asksSocket },
		"Collect of the healthy case fails":       func(s *sample, _ *Cases) { s.collect = s.asksForAll },
		"a volume that is not the provider's":     func(s *sample, _ *Cases) { s.collect = s.asksForAll },
		"its message is longer than 512":          func(s *sample, _ *Cases) { s.collect, s.change = s.raw, quotesEvidence },
		"a sick case has no condition":            func(_ *sample, c *Cases) { c.Sick["well"] = c.Healthy },
		"a healthy case has conditions":           func(_ *sample, c *Cases) { c.Healthy = c.Sick["SessionLost"] },
		"Finding.Mine is false":                   func(_ *sample, c *Cases) { c.Healthy = Volume("driver.example", "ext4") },
		"with what Collect got of Cases.Tools as they are: a healthy case has": func(_ *sample, c *Cases) {
			c.Tools.Files = map[string]string{"/run/sample/health": "lost"}
		},
		"pkg/healer/providertest/sample_test.go": func(s *sample, _ *Cases) { s.change = readsRecord },
		"panics: Collect": func(s *sample, _ *Cases) {
			s.collect = func(context.Context, healer.Case) (healer.Evidence, error) { panic("Collect") }
		},
		"its message has control characters": func(s *sample, _ *Cases) { s.change = quotesSource },
		"its message quotes a secret":        func(s *sample, _ *Cases) { s.collect, s.change = s.asksProgram, quotesEvidence },
		"its refusal quotes a secret":        func(s *sample, _ *Cases) { s.collect, s.change = s.asksProgram, refusesWithEvidence },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			tools, cases := node()
			s := sample{tools: tools}
			spoil(&s, &cases)
			caught := false
			for _, check := range (suite{s, cases}).rules() {
				check(func(format string, args ...any) {
					caught = caught || strings.Contains(fmt.Sprintf(format, args...), want)
				})
				if caught {
					return
				}
			}
			t.Error("was not caught")
		})
	}
}

// A provider that waits for longer than its deadline is late each time, what a busy machine held up once.
func TestReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if returns(func() { time.Sleep(patience / 2) }) {
			t.Error("5s late, and in time")
		}
		held := patience / 2
		if !returns(func() { time.Sleep(held); held = brief }) {
			t.Error("late once, and not in time")
		}
	})
}

// What a program wrote is the tools' to redact, not the provider's.
func TestLeaks(t *testing.T) {
	exit := &healer.ExitError{Program: reconnect, Code: 1, Text: "said " + secret}
	for err, want := range map[error]bool{exit: false, fmt.Errorf("ask: %w", exit): false, fmt.Errorf(secret+": %w", exit): true} {
		if got := leaks(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}
