package fuse

import (
	"context"
	"slices"

	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Host is what is asked of the host; *node.Node is the real one.
type Host interface {
	FUSEDaemons(ctx context.Context, dev facts.Dev) (facts.FUSEDaemons, error)
	FUSEWaiting(ctx context.Context, dev facts.Dev) int
	MayAbortFUSE(ctx context.Context, plan facts.AbortPlan) error
	AbortFUSE(ctx context.Context, plan facts.AbortPlan, revalidate func(context.Context) error) error
}

// Provider is the provider for what FUSE daemons serve.
type Provider struct {
	host   Host
	inputs Inputs
	// abort is whether a connection whose daemon hangs may be aborted.
	abort bool
	// silences has the silence of each superblock that did not answer last, by device.
	silences *lru.Cache
}

// Inputs knows when a PersistentVolume or its Secret was last changed.
type Inputs interface {
	Inputs(ctx context.Context, c healer.Case) (healer.StageInputs, error)
}

// New returns the provider. inputs is nil where nothing is known of them.
func New(h Host, inputs Inputs, abort bool) *Provider {
	return &Provider{host: h, inputs: inputs, abort: abort, silences: lru.New(maxSilences)}
}

// Name implements healer.Provider.
func (*Provider) Name() string { return "fuse" }

// Examine implements healer.Provider. Each connection is judged once, at the first mount
// point that shows it.
func (p *Provider) Examine(c healer.Case) (healer.Finding, error) {
	var f healer.Finding
	asked, _ := c.Evidence[p.Name()].(evidence)
	for _, dev := range connections(c) {
		f.Mine = true
		answer, sick := asked[dev]
		if !sick {
			continue
		}
		j := judgement{c: c, mountPoint: at(c, dev), dev: dev, sb: c.Superblocks[dev], connection: answer}
		cond, found := j.condition()
		if !found {
			continue
		}
		if cond.Reason == healer.DaemonHung && p.abort {
			cond.Acute = true
			f.Steps = append(f.Steps, p.abortConnection(j))
		}
		f.Conditions = append(f.Conditions, cond)
	}
	return f, nil
}

// connections returns the FUSE superblocks of the volume on the host, in the order of
// its mount points.
func connections(c healer.Case) (devs []facts.Dev) {
	for _, p := range c.MountPoints {
		if len(p.Stack) == 0 || p.InContainer != nil || slices.Contains(devs, p.Dev()) {
			continue
		}
		if sb, probed := c.Superblocks[p.Dev()]; probed && facts.IsFUSE(sb.FSType) {
			devs = append(devs, p.Dev())
		}
	}
	return devs
}

// at returns the first mount point that shows a superblock.
func at(c healer.Case, dev facts.Dev) healer.MountPoint {
	i := slices.IndexFunc(c.MountPoints, func(p healer.MountPoint) bool {
		return len(p.Stack) > 0 && p.InContainer == nil && p.Dev() == dev
	})
	return c.MountPoints[i]
}
