package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// collect asks the providers that have to ask, side by side, and puts their evidence
// into the case. One that fails, panics or does not return in time fails alone.
func (e *Engine) collect(ctx context.Context, c *healer.Case) []healer.ProviderFailure {
	var asked []healer.Collector
	for _, p := range e.cfg.Providers {
		if collector, asks := p.(healer.Collector); asks {
			asked = append(asked, collector)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.CollectTimeout)
	defer cancel()
	answers, about := make([]chan collected, len(asked)), *c // a late one may still read it
	for i, p := range asked {
		answers[i] = e.ask(ctx, p, &about)
	}
	var failures []healer.ProviderFailure
	evidence := map[string]healer.Evidence{}
	for i, p := range asked {
		var a collected
		select {
		case a = <-answers[i]:
		case <-ctx.Done():
			select {
			case a = <-answers[i]: // it went by the deadline itself
			case <-e.life.Done():
				a.err = ctx.Err()
			case <-time.After(collectGrace):
				a.err = fmt.Errorf("it did not return within %s", e.cfg.CollectTimeout)
				e.late.Store(answers[i], question{p.Name(), storageKey(*c)})
				e.running.Go(func() {
					<-answers[i]
					e.late.Delete(answers[i])
				})
			}
		}
		if a.err != nil {
			failures = append(failures, healer.ProviderFailure{Provider: p.Name(), Err: a.err})
		} else if a.evidence != nil {
			evidence[p.Name()] = a.evidence
		}
	}
	c.Evidence = evidence
	return failures
}

// collectGrace is how long after its deadline a provider may take to return.
const collectGrace = 200 * time.Millisecond

type collected struct {
	evidence healer.Evidence
	err      error
}

// question is a call of a provider's Collect about a storage.
type question struct{ provider, storage string }

// ask calls one Collect, unless one about the same storage is late: each further call might be, too. A
// call that outlives its deadline counts as work of the engine, for which Close waits.
func (e *Engine) ask(ctx context.Context, p healer.Collector, c *healer.Case) chan collected {
	answer := make(chan collected, 1)
	late, asks := false, question{p.Name(), storageKey(*c)}
	e.late.Range(func(_, of any) bool {
		late = of == asks
		return !late
	})
	if late {
		answer <- collected{err: errors.New("an earlier question about the same storage is not answered yet")}
		return answer
	}
	e.running.Go(func() { // the call that asks is running, too
		var a collected
		defer func() {
			if fault := recover(); fault != nil {
				a = collected{err: panicked(ctx, p, c.Volume, fault)}
			}
			answer <- a
		}()
		a.evidence, a.err = p.Collect(ctx, *c)
		mayPanic(a.err)
	})
	return answer
}

// mayPanic reads a provider's error where a panic is survived: one that is a nil pointer would have
// the loop, which tells it, end the server.
func mayPanic(err error) {
	if err != nil {
		_ = err.Error()
	}
}

func panicked(ctx context.Context, p healer.Provider, v healer.Volume, fault any) error {
	text := panicText(v, fault)
	klog.FromContext(ctx).Error(nil, "Panic in a provider", "provider", p.Name(), "panic", text, "stack", string(debug.Stack()))
	return fmt.Errorf("internal error, see the log: panic: %s", text)
}

// panicText returns the words of a panic. Those of a provider, and not of the runtime, may
// quote the request: they are only returned for a request without secrets and context.
func panicText(v healer.Volume, fault any) string {
	if known, ok := fault.(runtime.Error); ok {
		return known.Error()
	}
	if len(v.Secrets) > 0 || len(v.Context) > 0 || len(v.MountFlags) > 0 {
		return fmt.Sprintf("a value of type %T", fault)
	}
	return printable.Line(fmt.Sprint(fault), maxPanicText)
}

// maxPanicText bounds what a provider's panic says, in bytes.
const maxPanicText = 256

// storageKey names the storage that the volume lies on, with the driver: the volume's first superblock, or
// the volume itself while nothing is mounted. Volumes of several drivers may lie on the node's own disk.
func storageKey(c healer.Case) string {
	for _, p := range c.MountPoints {
		if p.Mounted() {
			return c.Driver + "\x00" + p.Dev().String()
		}
	}
	return c.Driver + "\x00" + c.Volume.ID
}
