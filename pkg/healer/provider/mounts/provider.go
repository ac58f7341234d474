package mounts

import (
	"context"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// Host is what the steps ask of the host; *host.Node is the real one.
type Host interface {
	Rebind(ctx context.Context, plan host.RebindPlan, still func(context.Context) error) error
	Finish(ctx context.Context, plan host.RebindPlan, interim host.Mount, still func(context.Context) error) error
	TakeOff(ctx context.Context, interim host.Mount, still func(context.Context) error) error
}

// Provider is the generic provider.
type Provider struct {
	host Host
}

// New makes the provider.
func New(h Host) Provider { return Provider{host: h} }

// Name implements healer.Provider.
func (Provider) Name() string { return "mounts" }

// Examine implements healer.Provider. Each superblock is judged once, at the
// first place that shows it.
func (p Provider) Examine(_ context.Context, c healer.Case) (healer.Finding, error) {
	f := healer.Finding{Mine: true}
	judged := map[host.Dev]bool{}
	for _, place := range c.Places {
		f.Conditions = append(f.Conditions, judgePlace(c, place)...)
		if len(place.Stack) > 0 && !judged[place.Dev()] {
			judged[place.Dev()] = true
			f.Conditions = append(f.Conditions, judgeSuperblock(c, place)...)
		}
	}
	for _, place := range c.Places {
		f.Steps = append(f.Steps, p.steps(c, place, f.Conditions)...)
	}
	return f, nil
}
