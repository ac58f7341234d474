package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// Gate is healer.Gate by the word of the cluster.
type Gate struct {
	Cluster *Cluster
	// Node knows kubelet's paths and finds the containers that use a volume;
	// *host.Node is the real one.
	Node interface {
		Kubelet() host.Kubelet
		RealPath(path string) string
		healer.HolderFinder
	}
}

// Look implements healer.Gate. It goes by what is remembered: what was forbidden
// when the API last answered stays forbidden when it does not.
func (g Gate) Inspect(ctx context.Context, v healer.Volume) error {
	g.Cluster.finalized(ctx)
	l := g.Node.Kubelet().Layout(g.Node.RealPath(v.Path))
	return g.Cluster.ruling(g.Cluster.look(ctx, nameOf(v, "", l), l.PodUID)).forbids(modeCheck)
}

// Wants implements healer.Gate. Only where memory says that the pod wants it, the API
// is asked, too.
func (g Gate) Wants(ctx context.Context, c healer.Case, p healer.MountPoint) bool {
	known, found := g.Cluster.pod(p.PodUID)
	if !found {
		return false
	}
	name, node := nameOf(c.Volume, c.Driver, p.Layout), g.Cluster.cfg.Node
	w := g.Cluster.look(ctx, name, p.PodUID)
	if w.wanted(name, p.PodUID, node) != nil {
		return false
	}
	now, err := ask(ctx, g.Cluster.reader, podKind, known.Namespace, known.Name)
	return err == nil && now != nil && now.UID == known.UID && w.wants(now, name, node) == nil
}

// Enter implements healer.Gate.
func (g Gate) Enter(ctx context.Context, d healer.Diagnosis, s healer.Step) (healer.Permit, error) {
	p := &permit{cluster: g.Cluster, step: s, name: nameAt(d.Case, s.MountPoint), reasons: reasonsFor(d, s)}
	p.earlier = d.Case.Record != nil && d.Case.Record.BootID != d.Case.BootID
	holder, blind := healer.HolderFor(ctx, g.Node, d.Case, s)
	p.holder = holder
	notAllowed, notWanted := p.ask(ctx)
	switch {
	case notAllowed != nil:
		p.Leave(notAllowed)
		return nil, notAllowed
	case notWanted != nil && blind != nil:
		p.Leave(notWanted)
		return nil, fmt.Errorf("%w; nor can it be told whether a container uses it: %w", notWanted, blind)
	case notWanted != nil:
		p.Leave(notWanted)
		return nil, fmt.Errorf("no running container of this pod has the volume mounted, and %w", notWanted)
	}
	return p, nil
}

// Write implements healer.Gate.
func (g Gate) Write(ctx context.Context, c healer.Case, p healer.MountPoint, onDisk bool) error {
	name := nameAt(c, p)
	w, err := g.Cluster.ask(ctx, name, p.PodUID, true)
	if err != nil {
		return err
	}
	// What is written to is that of all its pods.
	if err := g.Cluster.ruling(w).forbids(modeHeal); err != nil || !onDisk {
		return cmp.Or(err, w.silence)
	}
	return g.Cluster.mayWrite(ctx, w, name)
}

// reasonsFor gives the conditions that a step is meant to heal. For what an
// interrupted step of ours left behind there are none: no driver mends that.
func reasonsFor(d healer.Diagnosis, s healer.Step) []healer.Reason {
	if top, mounted := s.MountPoint.Top(); mounted && top.Placeholder() {
		return nil
	}
	var list []healer.Reason
	for _, c := range d.Conditions {
		if c.MountPoint == s.MountPoint.Path && s.CanHeal(c.Reason) {
			list = append(list, c.Reason)
		}
	}
	return list
}

// permit is the leave to run one step, asked anew right before its mount point becomes
// usable.
type permit struct {
	cluster *Cluster
	step    healer.Step
	name    volumeName
	reasons []healer.Reason
	// earlier is true when the volume was last seen in an earlier boot.
	earlier bool
	// holder is a container that uses the volume; nil when there is none.
	holder *host.Holder
}

// ask asks the API what decides, and says why the step is not allowed, and why the
// mount point is not wanted.
func (p *permit) ask(ctx context.Context) (notAllowed, notWanted error) {
	w, err := p.cluster.ask(ctx, p.name, p.step.MountPoint.PodUID, p.step.Writes)
	if err != nil {
		return err, nil
	}
	return p.allowed(ctx, w), p.wanted(w)
}

func (p *permit) allowed(ctx context.Context, w view) error {
	c := p.cluster
	if err := c.ruling(w).forbids(modeHeal); err != nil {
		return err
	}
	if err := c.emptied(w.node); err != nil {
		return err
	}
	if err := c.driverAway(ctx, p.name.driver); err != nil {
		return err
	}
	for _, reason := range p.reasons {
		if w.settings.selfRepair.Leaves(p.name.driver, reason) {
			return fmt.Errorf("%s is left to driver %s, which repairs it itself (%s in %s changes that)",
				reason, p.name.driver, keySelfRepair, c.settingsName())
		}
	}
	if !p.step.Writes {
		return nil
	}
	return c.mayWrite(ctx, w, p.name)
}

// wanted goes by a container that has the volume, else by the pod, and for a mount point
// that is no pod's by any pod that wants the volume. Silence of the API is no consent.
func (p *permit) wanted(w view) error {
	mountPoint := p.step.MountPoint
	switch {
	case p.holder != nil && p.holder.Alive() == nil:
		return nil
	case p.earlier:
		return errors.New("the volume was not seen healthy since the node booted, so kubelet may be about to publish it")
	case mountPoint.PodUID == "" && mountPoint.Layout.Kind == host.LayoutOther:
		return errors.New("the path is none of kubelet's, so no pod tells whether it is wanted")
	}
	return w.wanted(p.name, mountPoint.PodUID, p.cluster.cfg.Node)
}

// Still implements healer.Permit. It is asked when the mount is there, as a driver may
// have begun to unpublish since; a container that starts meanwhile gets a read-only
// mount.
func (p *permit) Revalidate(ctx context.Context) error {
	switch notAllowed, notWanted := p.ask(ctx); {
	case notAllowed != nil:
		return fmt.Errorf("%w: no longer allowed: %w", healer.ErrRefused, notAllowed)
	case notWanted != nil:
		return fmt.Errorf("%w: the mount point is no longer wanted: %w", healer.ErrRefused, notWanted)
	}
	return nil
}

// Leave implements healer.Permit.
func (p *permit) Leave(error) {
	if p.holder != nil {
		p.holder.Close()
	}
}
