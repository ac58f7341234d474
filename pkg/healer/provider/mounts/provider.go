package mounts

import (
	"context"
	"slices"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// Host is what the steps ask of the host; *host.Node is the real one.
type Host interface {
	Rebind(ctx context.Context, plan host.RebindPlan, revalidate func(context.Context) error) error
	Finish(ctx context.Context, plan host.RebindPlan, placeholder host.Mount, revalidate func(context.Context) error) error
	UnmountDuplicate(ctx context.Context, placeholder host.Mount, revalidate func(context.Context) error) error
	CanReplace() bool
	CanCover() bool
	Replace(ctx context.Context, plan host.RebindPlan, dead host.Mount, revalidate func(context.Context) error) error
	Cover(ctx context.Context, plan host.RebindPlan, revalidate func(context.Context) error) error
	UnmountDeadTop(ctx context.Context, dead, below host.Mount, revalidate func(context.Context) error) error
	ReplaceInContainers(ctx context.Context, plans []host.ContainerSwap) []error
}

// Containers says in which containers dead mounts are replaced.
type Containers string

// The choices for containers.
const (
	ContainersFUSE Containers = "fuse" // only mounts that a daemon serves
	ContainersAll  Containers = "all"
	ContainersOff  Containers = "off"
)

// Provider is the generic provider.
type Provider struct {
	host       Host
	containers Containers
}

// New makes the provider.
func New(h Host, c Containers) Provider { return Provider{host: h, containers: c} }

// Name implements healer.Provider.
func (Provider) Name() string { return "mounts" }

// answersAlone is true for a mount point whose own mount answers something else than its
// superblock.
func answersAlone(c healer.Case, p healer.MountPoint) bool {
	whole := c.Superblocks[p.Dev()].Answer
	return p.Own.Asked && (p.Own.Silent != whole.Silent || p.Own.Errno != whole.Errno)
}

// Examine implements healer.Provider. Each superblock is judged once, at the
// first place that shows it, and at each mount point where it is to be replaced, or has an
// answer of its own.
func (p Provider) Examine(_ context.Context, c healer.Case) (healer.Finding, error) {
	f := healer.Finding{Mine: true}
	judged := map[host.Dev]bool{}
	for _, mountPoint := range c.MountPoints {
		if mountPoint.InContainer != nil {
			f.Conditions = append(f.Conditions, judgeInside(mountPoint)...)
			continue
		}
		f.Conditions = append(f.Conditions, p.judgeMountPoint(c, mountPoint)...)
		if len(mountPoint.Stack) == 0 {
			continue
		}
		outlived := outlived(c, mountPoint)
		alone := answersAlone(c, mountPoint)
		if judged[mountPoint.Dev()] && !outlived && !alone {
			continue
		}
		judged[mountPoint.Dev()] = judged[mountPoint.Dev()] || !alone
		found := judgeSuperblock(c, mountPoint)
		for i := range found {
			found[i].Acute = found[i].Acute || outlived && slices.Contains(deadReasons, found[i].Reason)
		}
		f.Conditions = append(f.Conditions, found...)
	}
	f.Conditions = append(f.Conditions, judgeUnverified(c)...)
	f.Conditions = append(f.Conditions, judgeStarted(c)...)
	all := insides{host: p.host, plans: map[string]host.ContainerSwap{}}
	for _, mountPoint := range c.MountPoints {
		if mountPoint.InContainer != nil {
			f.Steps = append(f.Steps, p.replaceInside(c, mountPoint, f.Conditions, all))
			continue
		}
		f.Steps = append(f.Steps, p.steps(c, mountPoint, f.Conditions)...)
	}
	return f, nil
}
