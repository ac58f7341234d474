package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestConfigIsChecked(t *testing.T) {
	b := newFixture(t)
	good := b.engine.cfg
	for name, change := range map[string]func(*Config){
		"node": func(c *Config) { c.Node = nil }, "gate": func(c *Config) { c.Gate = nil },
		"records": func(c *Config) { c.Records = nil }, "audit": func(c *Config) { c.Audit = nil },
		"providers": func(c *Config) { c.Providers = nil }, "timeout": func(c *Config) { c.HealTimeout = 0 },
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
	b := newFixture(t, func(c *Config) { c.HealTimeout = time.Hour })
	b.healthy()
	b.fall(podA, healer.NotMounted)
	var left time.Duration
	b.steps = []healer.Step{{
		Name: "rebind", MountPoint: healer.MountPoint{Path: podA}, Heals: []healer.Reason{healer.NotMounted}, Source: disk,
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
	sick := healer.Diagnosis{Conditions: []healer.Condition{{Reason: healer.IOError}}}
	blind := healer.Diagnosis{Failures: []healer.ProviderFailure{{}}}
	for _, tc := range []struct {
		before healer.Diagnosis
		steps  []healer.Outcome
		after  healer.Diagnosis
		want   healer.Verdict
	}{
		{want: healer.Healthy},
		{before: sick, steps: []healer.Outcome{{}}, want: healer.Healed},
		{before: sick, want: healer.Healthy}, // it came back by itself
		{before: sick, steps: []healer.Outcome{{Err: errors.New("failed")}}, want: healer.Healthy},
		{before: sick, steps: []healer.Outcome{{}}, after: sick, want: healer.Abnormal},
		{after: sick, want: healer.Abnormal},
		{before: sick, after: blind, want: healer.Abnormal},
		{before: blind, after: blind, want: healer.Abnormal},
	} {
		if got := (healer.Report{Before: tc.before, Steps: tc.steps, After: tc.after}).Verdict(); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc, got, tc.want)
		}
	}
}
