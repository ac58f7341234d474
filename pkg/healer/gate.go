package healer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/host"
)

// WantedGate lets a step change a mount point only while its pod wants it (design:
// "wanted before action"): a driver's NodeUnpublishVolume unmounts and then
// deletes the directory tree, and a mount put back in between would have its
// files deleted.
type WantedGate struct {
	// Node finds the running containers that prove it.
	Node HolderFinder
	// Standalone declares that there is no orchestrator: the caller vouches for
	// the mount point it names, and for no other.
	Standalone bool
}

// HolderFinder finds containers; *host.Node is the real one.
type HolderFinder interface {
	Holder(ctx context.Context, podUID string, dev facts.Dev) (*host.Holder, error)
	// HolderAt returns a known container; nil if it no longer has the superblock
	// mounted, or is in no pod.
	HolderAt(ctx context.Context, m facts.ContainerMount) *host.Holder
}

// HolderFor returns a running container of the mount point's pod that has the volume
// mounted: the superblock that a step brings to the mount point, the one that it takes
// away, or a previous one. A staging path is wanted as long as any pod wants the volume,
// whose container may also have what is at the pod's target. nil for none.
func HolderFor(ctx context.Context, n HolderFinder, c Case, s Step) (*host.Holder, error) {
	if in := s.MountPoint.InContainer; in != nil {
		return n.HolderAt(ctx, in.ContainerMount), nil
	}
	for _, p := range c.MountPoints {
		if in := p.InContainer; in != nil && in.Proof != "" && (in.PodUID == s.MountPoint.PodUID || s.MountPoint.Role == RoleStaging) {
			if h := n.HolderAt(ctx, in.ContainerMount); h != nil {
				return h, nil
			}
		}
	}
	has := []podSuperblock{{s.MountPoint.PodUID, s.Source}, {s.MountPoint.PodUID, mounted(s.MountPoint)}}
	if s.MountPoint.Role == RoleStaging {
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

// Inspect implements Gate.
func (WantedGate) Inspect(context.Context, Volume) error { return nil }

// Wants implements Gate. The one proof without an API is a container, which the engine
// looks for itself.
func (WantedGate) Wants(context.Context, Case, MountPoint) bool { return false }

// Enter implements Gate.
func (g WantedGate) Enter(ctx context.Context, d Diagnosis, s Step) (Permit, error) {
	if s.Writes && !g.Standalone {
		return nil, RefusedBy(RuleWrite, errors.New("there is no Kubernetes API to ask whether this node may still write to the device"))
	}
	holder, err := HolderFor(ctx, g.Node, d.Case, s)
	if err != nil {
		return nil, RefusedBy(RuleWanted, fmt.Errorf("cannot tell whether the mount point is wanted: %w", err))
	}
	switch {
	case holder != nil:
		return heldPermit{holder}, nil
	case g.Standalone && d.Case.Volume.Unasked:
		return nil, RefusedBy(RuleWanted, errors.New("no caller named the mount point, so only a running container that has the volume mounted proves that the mount point is wanted"))
	case g.Standalone && (s.MountPoint.Named || s.MountPoint.Role == RoleContainer):
		return vouchedPermit{}, nil
	case g.Standalone:
		return nil, RefusedBy(RuleWanted, errors.New("the caller vouches only for the path it names, and no running container of this mount point's pod has the volume mounted"))
	default:
		return nil, RefusedBy(RuleWanted, errors.New("no running container of this pod has the volume mounted, so nothing proves that the mount point is still wanted"))
	}
}

// Write implements Gate: while a container uses the volume, it writes to the device
// itself.
func (g WantedGate) Write(ctx context.Context, c Case, p MountPoint, onDisk bool) error {
	if g.Standalone && !c.Volume.Unasked || !onDisk {
		return nil
	}
	holder, err := g.Node.Holder(ctx, p.PodUID, p.Dev())
	if err != nil {
		return fmt.Errorf("cannot tell whether the volume is in use: %w", err)
	}
	if holder == nil {
		return errors.New("no running container of a pod here has the volume mounted, so nothing proves that this node may still write to it")
	}
	holder.Close()
	return nil
}

// heldPermit lasts as long as the container's process.
type heldPermit struct{ holder *host.Holder }

func (p heldPermit) Revalidate(context.Context) error {
	if err := p.holder.Alive(); err != nil {
		return fmt.Errorf("%w: the mount point is no longer wanted: %w", ErrRefused, err)
	}
	return nil
}

func (p heldPermit) Leave(error) { p.holder.Close() }

// vouchedPermit lasts as long as the call.
type vouchedPermit struct{}

func (vouchedPermit) Revalidate(ctx context.Context) error { return ctx.Err() }
func (vouchedPermit) Leave(error)                          {}

// mounted returns the superblock that is mounted at the path of p itself; zero for nothing.
func mounted(p MountPoint) facts.Dev {
	if !p.Mounted() {
		return facts.Dev{}
	}
	return p.Dev()
}
