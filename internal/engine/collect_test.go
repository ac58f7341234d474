package engine

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// collector is a provider that asks; collect stands for the question.
type collector struct {
	provider
	collect func(context.Context, healer.Case) (healer.Evidence, error)
}

func (c collector) Collect(ctx context.Context, of healer.Case) (healer.Evidence, error) {
	return c.collect(ctx, of)
}

func asking(name string, collect func(context.Context, healer.Case) (healer.Evidence, error)) collector {
	return collector{provider{name, func(c healer.Case) (healer.Finding, error) {
		if c.Evidence[name] != "lost" {
			return healer.Finding{Mine: true}, nil
		}
		return healer.Finding{Mine: true, Conditions: []healer.Condition{{Status: healer.Degraded, Reason: "SessionLost", MountPoint: podA}}}, nil
	}}, collect}
}

func TestEvidenceIsInTheCaseUnderTheProvidersName(t *testing.T) {
	var mounted bool
	a := asking("a", func(_ context.Context, c healer.Case) (healer.Evidence, error) {
		mounted = c.MountPoints[0].Mounted()
		return "lost", nil
	})
	b := newFixture(t, func(c *Config) {
		c.Providers = append(c.Providers, a, asking("b", func(context.Context, healer.Case) (healer.Evidence, error) { return "fine", nil }))
	})
	r := b.heal(volume)
	if len(r.After.Conditions) != 1 || r.After.Conditions[0].Reason != "SessionLost" || !mounted {
		t.Errorf("%+v, mounted: %v", r.After.Conditions, mounted)
	}
}

// inBubble runs a test by whose clock no answer is late on a busy machine.
func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// A provider that cannot ask fails alone, whatever it does.
func TestCollectFailsAlone(t *testing.T) {
	var release chan struct{}
	for name, tc := range map[string]struct {
		collect func(context.Context, healer.Case) (healer.Evidence, error)
		why     string
	}{
		"error":           {func(context.Context, healer.Case) (healer.Evidence, error) { return "lost", errors.New("no answer") }, "no answer"},
		"panic":           {func(context.Context, healer.Case) (healer.Evidence, error) { panic("secret") }, "internal error, see the log"},
		"runtime panic":   {func(_ context.Context, c healer.Case) (healer.Evidence, error) { return c.MountPoints[99], nil }, "internal error, see the log"},
		"a nil pointer":   {func(context.Context, healer.Case) (healer.Evidence, error) { return nil, (*fs.PathError)(nil) }, "internal error, see the log"},
		"by the deadline": {func(ctx context.Context, _ healer.Case) (healer.Evidence, error) { <-ctx.Done(); return nil, ctx.Err() }, "deadline exceeded"},
		"never":           {func(context.Context, healer.Case) (healer.Evidence, error) { <-release; return nil, nil }, "did not return within"},
	} {
		inBubble(t, name, func(t *testing.T) {
			release = make(chan struct{})
			b := newFixture(t, func(c *Config) {
				c.CollectTimeout = time.Second
				c.Providers = append(c.Providers, asking("bad", tc.collect), asking("good", func(context.Context, healer.Case) (healer.Evidence, error) { return "lost", nil }))
			})
			r := b.heal(volume)
			if r.Verdict() != healer.Abnormal || len(r.After.Failures) != 1 || r.After.Failures[0].Provider != "bad" || !strings.Contains(r.After.Failures[0].Err.Error(), tc.why) {
				t.Errorf("%s: %+v", r.Verdict(), r.After.Failures)
			}
			if len(r.After.Conditions) != 1 {
				t.Errorf("the other provider's finding: %+v", r.After.Conditions)
			}
			if name == "never" {
				close(release) // Close of the engine waits for it
			}
		})
	}
}

// Volumes on one storage are asked about side by side: a slow driver makes none of many late.
func TestQuestionsAboutOneStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := asking("a", func(context.Context, healer.Case) (healer.Evidence, error) {
			time.Sleep(time.Second)
			return "asked", nil
		})
		b := newFixture(t, func(c *Config) { c.CollectTimeout = 2 * time.Second })
		var all []chan collected
		for range 20 {
			all = append(all, b.engine.ask(t.Context(), p, &healer.Case{Driver: driver}))
		}
		start := time.Now()
		for _, answer := range all {
			if a := <-answer; a.err != nil || a.evidence != "asked" {
				t.Errorf("%+v", a)
			}
		}
		if time.Since(start) != time.Second {
			t.Errorf("one waited for another one: %s", time.Since(start))
		}
	})
}

// After one that is late, a storage is not asked again until it has answered. It keeps no question
// about volumes of another driver, which may lie on the same filesystem of the node.
func TestLateQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hangs = "hangs.example.com"
		var calls atomic.Int32
		release := make(chan struct{})
		p := asking("a", func(_ context.Context, c healer.Case) (healer.Evidence, error) {
			if c.Driver == hangs {
				calls.Add(1)
				<-release
			}
			return "asked", nil
		})
		b := newFixture(t, func(c *Config) { c.CollectTimeout, c.Providers = time.Second, []healer.Provider{p} })
		collect := func(driver string) (*healer.Case, []healer.ProviderFailure) {
			c := &healer.Case{Driver: driver, MountPoints: []healer.MountPoint{on(healer.RoleTarget, podA, disk)}}
			return c, b.engine.collect(t.Context(), c)
		}
		for range 3 {
			if _, failures := collect(hangs); len(failures) != 1 {
				t.Errorf("%v", failures)
			}
		}
		if calls.Load() != 1 {
			t.Errorf("asked %d times while one call is late", calls.Load())
		}
		if c, failures := collect(driver); len(failures) > 0 || c.Evidence["a"] != "asked" {
			t.Errorf("another driver: %v", failures)
		}
		close(release)
		synctest.Wait()
		if c, failures := collect(hangs); len(failures) > 0 || c.Evidence["a"] != "asked" {
			t.Errorf("after the answer: %v", failures)
		}
		b.engine.late.Range(func(_, q any) bool { t.Errorf("%v is kept", q); return true })
	})
}

// Where two calls about a storage are late, the return of either leaves the other one.
func TestLateQuestions(t *testing.T) {
	for _, first := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int32
			release := []chan struct{}{make(chan struct{}), make(chan struct{})}
			p := asking("a", func(context.Context, healer.Case) (healer.Evidence, error) {
				if n := calls.Add(1); n <= 2 {
					<-release[n-1]
				}
				return "asked", nil
			})
			b := newFixture(t, func(c *Config) { c.CollectTimeout, c.Providers = time.Second, []healer.Provider{p} })
			collect := func() { b.engine.collect(t.Context(), &healer.Case{Driver: driver}) }
			var both sync.WaitGroup
			both.Go(collect)
			time.Sleep(time.Millisecond)
			both.Go(collect)
			both.Wait()
			close(release[first])
			synctest.Wait()
			if collect(); calls.Load() != 2 {
				t.Errorf("call %d returned, and the other one is late: asked %d times", first, calls.Load())
			}
			close(release[1-first])
			synctest.Wait()
			if collect(); calls.Load() != 3 {
				t.Errorf("asked %d times after both", calls.Load())
			}
		})
	}
}

// Any provider may know that the source of another one's step is lost.
func TestSickSourceRefusesASteps(t *testing.T) {
	lost := healer.Condition{Status: healer.Inaccessible, Reason: "BackendLost", Message: "the pool is gone", MountPoint: staging, Superblock: disk}
	other := provider{"vendor", func(healer.Case) (healer.Finding, error) {
		return healer.Finding{Mine: true, Conditions: []healer.Condition{lost}}, nil
	}}
	for name, tc := range map[string]struct {
		change  func(*healer.Step)
		degrade bool
		ran     bool
	}{
		"it does not heal that": {change: func(*healer.Step) {}},
		"it heals that":         {change: func(s *healer.Step) { s.Heals = append(s.Heals, "BackendLost") }, ran: true},
		"it works":              {change: func(*healer.Step) {}, degrade: true, ran: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.healthy()
			lost := lost
			if tc.degrade {
				lost.Status = healer.Degraded
			}
			other.examine = func(healer.Case) (healer.Finding, error) {
				return healer.Finding{Mine: true, Conditions: []healer.Condition{lost}}, nil
			}
			b.engine.cfg.Providers = append(b.engine.cfg.Providers, other)
			b.fall(podA, healer.NotMounted)
			ran := false
			b.offer("rebind", podA, healer.Rebind, func() error { ran = true; b.recover(podA); return nil })
			tc.change(&b.steps[0])
			r := b.heal(volume)
			if ran != tc.ran || r.Verdict() != healer.Abnormal {
				t.Errorf("ran: %v, %s", ran, r.Verdict())
			}
			if !tc.ran && (len(r.Refused) != 1 || !strings.Contains(r.Refused[0].Why, "BackendLost (the pool is gone)")) {
				t.Errorf("refusals %+v", r.Refused)
			}
		})
	}
}

// A volume that is published without being staged has its source at the target.
func TestSickSourceOfATarget(t *testing.T) {
	target := on(healer.RoleTarget, podA, disk)
	at := func(dev facts.Dev) healer.Diagnosis {
		return healer.Diagnosis{
			Case:       healer.Case{MountPoints: []healer.MountPoint{target}},
			Conditions: []healer.Condition{{Status: healer.Inaccessible, Reason: "ServerUnreachable", MountPoint: podA, Superblock: dev}},
		}
	}
	s := healer.Step{Name: "abort-connection", MountPoint: target, Source: disk, Heals: []healer.Reason{"DaemonHung"}}
	if why := sickSource(at(disk), s); !strings.Contains(why, "ServerUnreachable") {
		t.Errorf("the whole filesystem is sick: %q", why)
	}
	for _, dev := range []facts.Dev{{}, {Minor: 99}} {
		if why := sickSource(at(dev), s); why != "" {
			t.Errorf("superblock %s: %q", dev, why)
		}
	}
}

// A step that brings a superblock which does not exist yet needs a proven volume; the
// step that brings the new one to a target proves its identity.
func TestRestageWithoutASource(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil  func(*fixture)
		serial string // of what was staged
		why    string
		healed bool
	}{
		"the same disk":      {spoil: func(*fixture) {}, serial: "serial-1", healed: true},
		"another disk":       {spoil: func(*fixture) {}, serial: "other", why: "identity not proven: serial number"},
		"never seen healthy": {spoil: func(b *fixture) { clear(b.notes.records) }, why: "never seen healthy"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.healthy()
			tc.spoil(b)
			b.fall(staging, healer.StagingNotMounted)
			b.fall(podA, healer.NotMounted)
			restaged, replaced := 0, 0
			b.steps = []healer.Step{{
				Name: "restage", MountPoint: healer.MountPoint{Role: healer.RoleStaging, Path: staging}, Cost: healer.Restage, Heals: []healer.Reason{healer.StagingNotMounted},
				Run: func(context.Context, func(context.Context) error) error {
					restaged++
					setSerial(b, tc.serial)
					b.recover(staging)
					return nil
				},
			}}
			b.offer("replace", podA, healer.Replace, func() error { replaced++; b.recover(podA); return nil })
			b.steps[1].Heals = []healer.Reason{healer.NotMounted}
			r := b.heal(volume)
			if (r.Verdict() == healer.Healed) != tc.healed {
				t.Errorf("%s: %+v", r.Verdict(), r.Refused)
			}
			if tc.why != "" && (replaced != 0 || !strings.Contains(r.Refused[0].Why, tc.why)) {
				t.Errorf("replaced %d times, refused %+v", replaced, r.Refused)
			}
			if tc.spoil != nil && name == "never seen healthy" && restaged != 0 {
				t.Error("restaged a volume that is not proven")
			}
		})
	}
}
