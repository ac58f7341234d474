package mounts

import (
	"context"
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Host is what the steps ask of the host; *node.Node is the real one.
type Host interface {
	Rebind(ctx context.Context, plan facts.RebindPlan, revalidate func(context.Context) error) error
	Finish(ctx context.Context, plan facts.RebindPlan, placeholder facts.Mount, revalidate func(context.Context) error) error
	CanReplace() bool
	CanCover() bool
	Replace(ctx context.Context, plan facts.RebindPlan, dead facts.Mount, revalidate func(context.Context) error) error
	Cover(ctx context.Context, plan facts.RebindPlan, revalidate func(context.Context) error) error
	UnmountTop(ctx context.Context, plan facts.UnmountPlan, revalidate func(context.Context) error) error
}

// Provider is the generic provider.
type Provider struct{ host Host }

// New returns the provider.
func New(h Host) Provider { return Provider{host: h} }

// Name implements healer.Provider.
func (Provider) Name() string { return "mounts" }

// Examine implements healer.Provider. What containers have is not its business.
func (p Provider) Examine(c healer.Case) (healer.Finding, error) {
	f := healer.Finding{Mine: true, Conditions: p.diagnose(c)}
	c.Found = slices.Concat(c.Found, f.Conditions)
	for _, mp := range c.MountPoints {
		f.Steps = append(f.Steps, p.steps(c, mp)...)
	}
	return f, nil
}

// diagnose judges each superblock once, at the first mount point that shows it, and again
// at each mount point where it is to be replaced or has an answer of its own.
func (p Provider) diagnose(c healer.Case) (found []healer.Condition) {
	judged := map[facts.Dev]bool{}
	for _, mp := range c.MountPoints {
		if mp.InContainer != nil {
			continue
		}
		covered := !p.host.CanReplace() && onlyDeadBeneath(c, mp) // this provider stacked them
		for _, cond := range judgeMountPoint(c, mp) {
			if !covered || cond.Reason != healer.StackedMounts {
				found = append(found, cond)
			}
		}
		if len(mp.Stack) == 0 {
			continue
		}
		dev, outlived, alone := mp.Dev(), outlived(c, mp), c.AnswersAlone(mp)
		if judged[dev] && !outlived && !alone {
			continue
		}
		judged[dev] = judged[dev] || !alone
		for _, cond := range judgeSuperblock(c, mp) {
			cond.Acute = cond.Acute || outlived && slices.Contains(deadReasons, cond.Reason)
			found = append(found, cond)
		}
	}
	return found
}
