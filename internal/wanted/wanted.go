// Package wanted tells from running containers whether a mount point is wanted: it is while a
// container of its pod has the volume mounted. Gate is the whole decision where no Kubernetes API
// can be asked; the cluster's gate asks the API, too.
package wanted

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Gate lets a step change a mount point only while its pod wants it: a driver's
// NodeUnpublishVolume unmounts and then removes the directory tree, and would delete the files of
// a volume that a step mounts again in between.
type Gate struct {
	// Node finds the running containers that prove that a mount point is wanted.
	Node Finder
	// Standalone declares that there is no orchestrator: the caller vouches for
	// the mount point it names, and for no other.
	Standalone bool
}

// Finder finds containers; *node.Node is the real one, and says which.
type Finder interface {
	Holder(ctx context.Context, podUID string, dev facts.Dev) (*node.Holder, error)
	HolderAt(ctx context.Context, m facts.ContainerMount) *node.Holder
}

// HolderFor returns a running container of the mount point's pod that has the volume mounted: the
// superblock that a step brings to the mount point, the one that is mounted there, or a previous
// one. A staging path is wanted as long as any pod wants the volume; of each pod's containers what
// is at the pod's target counts, too. nil for none.
func HolderFor(ctx context.Context, n Finder, c healer.Case, s healer.Step) (*node.Holder, error) {
	if in := s.MountPoint.InContainer; in != nil {
		return n.HolderAt(ctx, in.ContainerMount), nil
	}
	for _, p := range c.MountPoints {
		if in := p.InContainer; in != nil && in.Proof != "" && (in.PodUID == s.MountPoint.PodUID || s.MountPoint.Role == healer.RoleStaging) {
			if h := n.HolderAt(ctx, in.ContainerMount); h != nil {
				return h, nil
			}
		}
	}
	has := []podSuperblock{{s.MountPoint.PodUID, s.Source}, {s.MountPoint.PodUID, mounted(s.MountPoint)}}
	if s.MountPoint.Role == healer.RoleStaging {
		for _, p := range c.MountPoints {
			has = append(has, podSuperblock{p.PodUID, s.Source}, podSuperblock{p.PodUID, mounted(s.MountPoint)})
			if p.Proven { // else it may be another volume's that the caller named
				has = append(has, podSuperblock{p.PodUID, mounted(p)})
			}
		}
	}
	for i, h := range has {
		if slices.Contains(has[:i], h) {
			continue
		}
		if holder, err := n.Holder(ctx, h.podUID, h.dev); holder != nil || err != nil {
			return holder, err
		}
	}
	return nil, nil //nolint:nilnil // no container has it; documented
}

// podSuperblock is a superblock that shows that a pod uses a volume, if one of its
// containers has it mounted.
type podSuperblock struct {
	podUID string
	dev    facts.Dev
}

// Inspect implements healer.Gate.
func (Gate) Inspect(context.Context, healer.Volume) (bool, error) { return false, nil }

// Wants implements healer.Gate. Without an API only a container proves it, and the engine looks for
// that itself.
func (Gate) Wants(context.Context, healer.Case, healer.MountPoint) (bool, error) {
	return false, errors.New("no running container of its pod is seen to have the volume mounted, and there is no Kubernetes API to ask")
}

// Enter implements healer.Gate.
func (g Gate) Enter(ctx context.Context, d healer.Diagnosis, s healer.Step) (healer.Permit, error) {
	if s.Writes && !g.Standalone {
		return nil, healer.RefusedBy(healer.RuleWrite, errors.New("there is no Kubernetes API to ask whether this node may still write to the device"))
	}
	holder, err := HolderFor(ctx, g.Node, d.Case, s)
	if err != nil {
		return nil, healer.RefusedBy(healer.RuleWanted, fmt.Errorf("cannot tell whether the mount point is wanted: %w", err))
	}
	switch {
	case holder != nil:
		return heldPermit{holder}, nil
	case g.Standalone && d.Case.Volume.Unasked:
		return nil, healer.RefusedBy(healer.RuleWanted, errors.New("no running container is seen to have the volume mounted, which would prove that the mount point is wanted; a call that names its path would vouch for it (healerctl heal --path)"))
	case g.Standalone && (s.MountPoint.Named || s.MountPoint.Role == healer.RoleContainer):
		return vouchedPermit{}, nil
	case g.Standalone:
		return nil, healer.RefusedBy(healer.RuleWanted, errors.New("no running container of this mount point's pod is seen to have the volume mounted, and the caller vouches only for the path that it names (healerctl heal --path)"))
	default:
		return nil, healer.RefusedBy(healer.RuleWanted, errors.New("no running container of this pod is seen to have the volume mounted, so nothing proves that the mount point is still wanted"))
	}
}

// Write implements healer.Gate. While a container of this node has the volume mounted, that writes to
// the device itself, so a test write adds no risk.
func (g Gate) Write(ctx context.Context, c healer.Case, p healer.MountPoint, onDisk bool) error {
	if g.Standalone && !c.Volume.Unasked || !onDisk {
		return nil
	}
	holder, err := g.Node.Holder(ctx, p.PodUID, p.Dev())
	if err != nil {
		return fmt.Errorf("cannot tell whether the volume is in use: %w", err)
	}
	if holder == nil {
		return errors.New("no running container of a pod here is seen to have the volume mounted, so nothing proves that this node may still write to it")
	}
	holder.Close()
	return nil
}

// heldPermit lasts as long as the container's process.
type heldPermit struct{ holder *node.Holder }

func (p heldPermit) Revalidate(context.Context) error {
	if err := p.holder.Alive(); err != nil {
		return fmt.Errorf("%w: the mount point is no longer wanted: %w", healer.ErrRefused, err)
	}
	return nil
}

func (p heldPermit) Leave(error) { p.holder.Close() }

// vouchedPermit lasts as long as the call.
type vouchedPermit struct{}

func (vouchedPermit) Revalidate(ctx context.Context) error { return ctx.Err() }
func (vouchedPermit) Leave(error)                          {}

// mounted returns the superblock whose mount is at the path of p itself; zero for none.
func mounted(p healer.MountPoint) facts.Dev {
	if !p.Mounted() {
		return facts.Dev{}
	}
	return p.Dev()
}
