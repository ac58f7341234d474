package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"

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

// Look implements healer.Gate. What was forbidden when the API last answered
// stays forbidden when it does not.
func (g Gate) Look(ctx context.Context, v healer.Volume) error {
	g.Cluster.settled(ctx)
	l := g.Node.Kubelet().Layout(g.Node.RealPath(v.Path))
	return g.Cluster.rulingOn(g.Cluster.rules(), nameOf(v, "", l), l.PodUID).forbids(modeCheck)
}

// Wants implements healer.Gate.
func (g Gate) Wants(c healer.Case, p healer.Place) bool {
	pod, known := g.Cluster.pod(p.PodUID)
	return known && g.Cluster.current() == nil && g.Cluster.wants(pod, nameOf(c.Volume, c.Driver, p.Layout)) == nil
}

// Enter implements healer.Gate.
func (g Gate) Enter(ctx context.Context, d healer.Diagnosis, s healer.Step) (healer.Permit, error) {
	p := &permit{cluster: g.Cluster, step: s, name: nameOf(d.Case.Volume, d.Case.Driver, s.Place.Layout), reasons: reasonsFor(d, s)}
	p.earlier = d.Case.Record != nil && d.Case.Record.BootID != d.Case.BootID
	if err := p.allowed(ctx); err != nil {
		return nil, err
	}
	holder, blind := healer.HolderFor(ctx, g.Node, d.Case, s)
	p.holder = holder
	if err := p.wanted(ctx); err != nil {
		p.Leave(err)
		if blind != nil {
			return nil, fmt.Errorf("%w; nor can it be told whether a container uses it: %w", err, blind)
		}
		return nil, fmt.Errorf("no running container of this pod has the volume mounted, and %w", err)
	}
	return p, nil
}

// Write implements healer.Gate.
func (g Gate) Write(ctx context.Context, c healer.Case, p healer.Place, onDisk bool) error {
	if err := g.Cluster.current(); err != nil {
		return err
	}
	if onDisk {
		if err := g.Cluster.answers(); err != nil {
			return err
		}
	}
	s, err := g.Cluster.rulesNow(ctx)
	if err != nil {
		return err
	}
	name := nameOf(c.Volume, c.Driver, p.Layout)
	if err := g.Cluster.forbidsWrites(s, name, p.PodUID); err != nil || !onDisk {
		return err
	}
	return g.Cluster.mayWrite(ctx, s, name)
}

// reasonsFor gives the conditions that a step is meant to heal. For what an
// interrupted step of ours left behind there are none: no driver mends that.
func reasonsFor(d healer.Diagnosis, s healer.Step) []healer.Reason {
	if top, mounted := s.Place.Top(); mounted && top.Interim() {
		return nil
	}
	var list []healer.Reason
	for _, c := range d.Conditions {
		if c.Place == s.Place.Path && s.CanHeal(c.Reason) {
			list = append(list, c.Reason)
		}
	}
	return list
}

// permit is the leave to run one step, asked anew right before its place becomes
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

// allowed asks everything but whether the place is wanted.
func (p *permit) allowed(ctx context.Context) error {
	c := p.cluster
	if err := c.current(); err != nil {
		return err
	}
	s, err := c.rulesNow(ctx)
	if err != nil {
		return err
	}
	if err := c.rulingOn(s, p.name, p.step.Place.PodUID).forbids(modeHeal); err != nil {
		return err
	}
	if err := c.drained(); err != nil {
		return err
	}
	if err := c.driverAway(p.name.driver); err != nil {
		return err
	}
	for _, reason := range p.reasons {
		if s.selfRepair.Leaves(p.name.driver, reason) {
			return fmt.Errorf("%s is left to driver %s, which repairs it itself (%s in %s changes that)",
				reason, p.name.driver, keySelfRepair, c.settingsName())
		}
	}
	if !p.step.Writes {
		return nil
	}
	if err := c.forbidsWrites(s, p.name, p.step.Place.PodUID); err != nil {
		return err
	}
	return c.mayWrite(ctx, s, p.name)
}

// wanted asks for a container that has the volume, else for the pod, and for a
// place that is no pod's for any pod that wants the volume.
func (p *permit) wanted(ctx context.Context) error {
	if p.holder != nil && p.holder.Alive() == nil {
		return nil
	}
	place := p.step.Place
	switch {
	case p.earlier:
		return errors.New("the volume was not seen healthy since the node booted, so kubelet may be about to publish it")
	case place.PodUID != "":
		return p.cluster.stillWanted(ctx, place.PodUID, p.name)
	case place.Layout.Kind == host.LayoutOther:
		return errors.New("the path is none of kubelet's, so no pod tells whether it is wanted")
	}
	err := errors.New("no pod on this node lists the volume")
	for _, pod := range p.cluster.podsUsing(p.name) {
		if err = p.cluster.stillWanted(ctx, string(pod.UID), p.name); err == nil {
			return nil
		}
	}
	return err
}

// Still implements healer.Permit. Both are asked at once: a container that starts
// meanwhile gets a read-only mount. Neither can be asked before the mount is there, as
// a driver may have begun to unpublish since.
func (p *permit) Still(ctx context.Context) error {
	var notAllowed, notWanted error
	var wg sync.WaitGroup
	wg.Go(func() { notAllowed = p.allowed(ctx) })
	wg.Go(func() { notWanted = p.wanted(ctx) })
	wg.Wait()
	switch {
	case notAllowed != nil:
		return fmt.Errorf("%w: no longer allowed: %w", healer.ErrRefused, notAllowed)
	case notWanted != nil:
		return fmt.Errorf("%w: the place is no longer wanted: %w", healer.ErrRefused, notWanted)
	}
	return nil
}

// Leave implements healer.Permit.
func (p *permit) Leave(error) {
	if p.holder != nil {
		p.holder.Close()
	}
}
