package metrics

import (
	"context"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// Counting is an Engine that counts what another one does.
type Counting struct {
	engine healer.Engine
	m      *Metrics
}

// Counting returns an engine that does what e does.
func (m *Metrics) Counting(e healer.Engine) Counting { return Counting{engine: e, m: m} }

// Check implements healer.Engine.
func (c Counting) Check(ctx context.Context, v healer.Volume) (healer.Report, error) {
	return c.count(ctx, "check", v, c.engine.Check)
}

// Heal implements healer.Engine.
func (c Counting) Heal(ctx context.Context, v healer.Volume) (healer.Report, error) {
	return c.count(ctx, "heal", v, c.engine.Heal)
}

func (c Counting) count(ctx context.Context, operation string, v healer.Volume, do func(context.Context, healer.Volume) (healer.Report, error)) (healer.Report, error) {
	start := time.Now()
	r, err := do(ctx, v)
	took := time.Since(start).Seconds()
	origin, outcome := "call", outcomeOf(r, err)
	if healer.CallerOf(ctx) == healer.CallerLoop {
		origin = originLoop
	}
	if operation == "check" {
		c.m.checks.WithLabelValues(origin, outcome).Inc()
		c.m.checkSeconds.WithLabelValues(origin, outcome).Observe(took)
	} else {
		c.m.heals.WithLabelValues(c.m.drivers.bounded(r.Driver), origin, outcome).Inc()
		c.m.healSeconds.WithLabelValues(origin, outcome).Observe(took)
	}
	c.m.report(operation, r, err)
	return r, err
}

// outcomeOf returns what a check or heal showed. That a path has no volume is an answer.
func outcomeOf(r healer.Report, err error) string {
	switch {
	case err == nil:
		return string(r.Verdict())
	case healer.KindOf(err) == healer.KindNotFound:
		return healer.KindNotFound.String()
	}
	return "error"
}

// report counts what an answer holds.
func (m *Metrics) report(operation string, r healer.Report, err error) {
	if err != nil {
		m.errors.WithLabelValues(operation, healer.KindOf(err).String(), string(healer.Classify(err).Type)).Inc()
	}
	driver := m.drivers.bounded(r.Driver)
	for _, o := range r.Steps {
		kind := ""
		if o.Err != nil {
			kind = string(healer.Classify(o.Err).Type)
		}
		m.steps.WithLabelValues(driver, m.vendors.bounded(o.Provider), m.vendors.bounded(o.Step), kind).Inc()
	}
	if operation == "heal" { // a check refuses every step
		for _, refused := range r.Refused {
			m.refusals.WithLabelValues(driver, m.vendors.bounded(refused.Step), string(refused.Rule)).Inc()
		}
	}
	for _, f := range r.After.Failures {
		m.providerFailures.WithLabelValues(m.vendors.bounded(f.Provider)).Inc()
	}
}
