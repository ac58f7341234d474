// Package containers is the provider for what running containers have of a
// volume that the host has replaced or mounted since: a mount of a previous
// superblock, the bare directory beneath, a placeholder, an old device number.
// Its one step replaces a dead mount in a container by the host's healthy one.
//
// The engine lists and probes the containers' mounts and proves that they are
// the volume's. What is wrong on the host itself is for the providers asked
// before this one.
package containers

import (
	"context"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Scope says in which containers dead mounts are replaced.
type Scope string

// The scopes.
const (
	FUSE Scope = "fuse" // only mounts of FUSE
	All  Scope = "all"
	Off  Scope = "off"
)

// Host is what the step asks of the host; *node.Node is the real one.
type Host interface {
	CanReplace() bool
	CanCover() bool
	ReplaceInContainers(ctx context.Context, plans []facts.ContainerSwap) []error
}

// Provider examines what containers have of a volume.
type Provider struct {
	host  Host
	scope Scope
}

// New returns the provider.
func New(h Host, s Scope) Provider { return Provider{host: h, scope: s} }

// Name implements healer.Provider.
func (Provider) Name() string { return "containers" }

// Examine implements healer.Provider.
func (p Provider) Examine(c healer.Case) (healer.Finding, error) {
	f := healer.Finding{Mine: true}
	batch := batch{host: p.host, plans: map[string]facts.ContainerSwap{}}
	for _, mp := range c.MountPoints {
		if mp.InContainer != nil {
			f.Conditions = append(f.Conditions, stale(mp))
			f.Steps = append(f.Steps, p.replace(c, mp, batch))
		}
	}
	f.Conditions = append(f.Conditions, started(c)...)
	for _, s := range c.OnOldDevice {
		f.Conditions = append(f.Conditions, healer.Condition{
			Status: healer.Inaccessible, Reason: healer.ContainerOnOldDevice, MountPoint: s.MountPoint,
			Message: fmt.Sprintf("%s started when the volume was device %s, which may be another disk by now: the volume is %s", s, s.Was, s.Now),
			Advice:  adviceOldDevice,
		})
	}
	return f, nil
}
