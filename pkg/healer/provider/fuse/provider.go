// Package fuse knows what is behind a FUSE mount that does not answer: the daemon. It
// names the process, and may abort a connection whose daemon hangs.
//
// That the mount is dead or does not answer is found by the provider mounts. Nothing is
// asked for a volume that answers, unless a lookup in it failed.
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
	for _, mp := range connections(c) {
		f.Mine = true
		answer, sick := asked[mp.Dev()]
		if !sick {
			continue
		}
		j := judgement{c: c, mountPoint: mp, dev: mp.Dev(), sb: c.Superblocks[mp.Dev()], connection: answer}
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

// connections returns the first mount point of each FUSE superblock that was probed.
func connections(c healer.Case) []healer.MountPoint {
	return slices.DeleteFunc(c.Shown(), func(p healer.MountPoint) bool {
		sb, probed := c.Superblocks[p.Dev()]
		return !probed || !facts.IsFUSE(sb.FSType)
	})
}
