package healer

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestConfigIsChecked(t *testing.T) {
	b := newFixture(t)
	good := b.engine.cfg
	for name, change := range map[string]func(*Config){
		"node": func(c *Config) { c.Node = nil }, "gate": func(c *Config) { c.Gate = nil },
		"records": func(c *Config) { c.Records = nil }, "audit": func(c *Config) { c.Audit = nil },
		"providers": func(c *Config) { c.Providers = nil }, "timeout": func(c *Config) { c.Timeout = 0 },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("an engine without %s", name)
		}
	}
}

// The work has a deadline of its own, whatever the caller's is.
func TestWorkHasItsOwnDeadline(t *testing.T) {
	b := newFixture(t, func(c *Config) { c.Timeout = time.Hour })
	b.healthy()
	b.fall(podA, NotMounted)
	var left time.Duration
	b.steps = []Step{{
		Name: "rebind", MountPoint: MountPoint{Path: podA}, Heals: []Reason{NotMounted}, Source: disk,
		Run: func(ctx context.Context, _ func(context.Context) error) error {
			at, _ := ctx.Deadline()
			left = time.Until(at)
			return errors.New("no")
		},
	}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := b.engine.Heal(ctx, volume); err != nil {
		t.Fatal(err)
	}
	if left < 50*time.Minute || left > time.Hour {
		t.Errorf("the step had %s", left)
	}
}

func TestVerdict(t *testing.T) {
	sick := Diagnosis{Conditions: []Condition{{Reason: IOError}}}
	blind := Diagnosis{Failures: []ProviderFailure{{}}}
	for _, tc := range []struct {
		before Diagnosis
		steps  []Outcome
		after  Diagnosis
		want   Verdict
	}{
		{Diagnosis{}, nil, Diagnosis{}, Healthy},
		{sick, []Outcome{{}}, Diagnosis{}, Healed},
		{sick, nil, Diagnosis{}, Healthy}, // it came back by itself
		{sick, []Outcome{{Err: errors.New("failed")}}, Diagnosis{}, Healthy},
		{sick, []Outcome{{}}, sick, Abnormal},
		{Diagnosis{}, nil, sick, Abnormal},
		{sick, nil, blind, Abnormal},
		{blind, nil, blind, Abnormal},
	} {
		if got := (Report{Before: tc.before, Steps: tc.steps, After: tc.after}).Verdict(); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc, got, tc.want)
		}
	}
}
