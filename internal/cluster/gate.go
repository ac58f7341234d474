package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/internal/wanted"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Inspect implements healer.Gate. It goes by what is known: what was forbidden when
// the API last answered stays forbidden while it does not.
func (c *Cluster) Inspect(ctx context.Context, v healer.Volume) (readersOnly bool, err error) {
	c.waitForSync(ctx)
	l := c.cfg.Node.Kubelet().Layout(c.cfg.Node.RealPath(v.Path))
	w := c.recall(ctx, volumeName{handle: v.ID, directory: l.PV}, l.PodUID)
	return w.readersOnly(ctx), c.mode(w).require(modeCheck)
}

// Wants implements healer.Gate. The API is asked only if the pod wanted the volume by
// what is known, or may: a pod that was seen to end does not begin again. A mount point is judged by the API's
// word, also where its pod may have been evicted.
func (c *Cluster) Wants(ctx context.Context, of healer.Case, p healer.MountPoint) (bool, error) {
	known := c.pod(p.PodUID)
	if known == nil {
		return false, c.pods.listed()
	}
	w := c.recall(ctx, volumeName{of.Driver, of.Volume.ID, p.Layout.PV}, p.PodUID)
	if w.unknown != nil {
		return false, unknown(w.unknown)
	}
	unwanted := w.wantedBy(known)
	mayHaveEnded := errors.Is(unwanted, errMayHaveEnded)
	if mayHaveEnded && runs(known) {
		w.here = c.inPods(ctx)
	}
	if unwanted == nil || mayHaveEnded && w.containerRuns(known) {
		now, err := get(ctx, c.reader, podKind, known.Namespace, known.Name)
		switch {
		case err != nil:
			return false, unknown(err)
		case now == nil || now.UID != known.UID:
			return false, nil
		}
		if unwanted = w.wantedBy(now); errors.Is(unwanted, errMayHaveEnded) && w.containerRuns(now) {
			return true, nil
		}
	}
	if errors.Is(unwanted, errMayHaveEnded) {
		return false, unwanted
	}
	return unwanted == nil, nil
}

// Enter implements healer.Gate.
func (c *Cluster) Enter(ctx context.Context, d healer.Diagnosis, s healer.Step) (healer.Permit, error) {
	p := &permit{cluster: c, step: s, name: nameAt(d.Case, s.MountPoint), reasons: reasonsFor(d, s)}
	p.earlier = d.Case.Record != nil && d.Case.Record.BootID != d.Case.BootID
	if p.pods = []string{s.MountPoint.PodUID}; s.MountPoint.Role == healer.RoleStaging {
		for _, of := range d.Case.MountPoints {
			p.pods = append(p.pods, of.PodUID)
		}
	}
	p.holder, p.holderErr = wanted.HolderFor(ctx, c.cfg.Node, d.Case, s)
	if err := p.ask(ctx); err != nil {
		p.Leave(nil)
		return nil, err
	}
	return p, nil
}

func (c *Cluster) Write(ctx context.Context, of healer.Case, p healer.MountPoint, onDisk bool) error {
	ask := func() (*view, error) {
		w, err := c.ask(ctx, nameAt(of, p), p.PodUID, true)
		if err != nil {
			return w, err
		}
		return w, c.mode(w).require(modeHeal) // of all pods: they share what is written to
	}
	w, err := ask()
	if err != nil || !onDisk {
		return cmp.Or(err, w.unavailable)
	}
	attached, err := w.attached(ctx)
	if err != nil {
		return err
	}
	if w, err = ask(); err != nil { // again: the lists took long
		return err
	}
	return w.mayWrite(ctx, attached)
}

// reasonsFor returns the conditions that a step is meant to heal. What an interrupted
// step of ours left behind has none: no driver repairs that.
func reasonsFor(d healer.Diagnosis, s healer.Step) []healer.Reason {
	if top, mounted := s.MountPoint.Top(); mounted && top.Placeholder() {
		return nil
	}
	var list []healer.Reason
	for _, c := range d.For(s) {
		list = append(list, c.Reason)
	}
	return list
}

// permit allows one step. It is revalidated right before the mount point becomes
// usable.
type permit struct {
	cluster *Cluster
	step    healer.Step
	name    volumeName
	reasons []healer.Reason
	// earlier is true when the volume was last seen in an earlier boot.
	earlier bool
	// holder is a container that uses the volume; nil when there is none, or when holderErr says
	// why that cannot be told.
	holder    *node.Holder
	holderErr error
	// pods are the UIDs of those to one of which the holder belongs.
	pods []string
}

// ask asks the API, and returns why the step is not allowed, or the mount point not wanted.
func (p *permit) ask(ctx context.Context) error {
	w, err := p.allowed(ctx)
	if err != nil || !p.step.Writes {
		return err
	}
	attached, err := w.attached(ctx)
	if err == nil {
		if w, err = p.allowed(ctx); err != nil { // again: the lists took long
			return err
		}
		err = w.mayWrite(ctx, attached)
	}
	if w.unavailable != nil || errors.Is(err, errNoAnswer) {
		return healer.RefusedBy(healer.RuleAPI, err)
	}
	return healer.RefusedBy(healer.RuleWrite, err)
}

// allowed asks the API all but what a step that writes to a device needs besides.
func (p *permit) allowed(ctx context.Context) (*view, error) {
	// First: it may take long, and what the API says of pod and mode must be newer. Whether the driver's pod
	// is ready is looked at again after that.
	_, awayBefore := p.cluster.driverAway(ctx, p.name.driver, true)
	// A container that runs shows nothing of other pods, for which the volume is staged as well.
	held := p.step.Cost != healer.Restage && p.holder != nil && p.holder.Alive() == nil
	var here []facts.Container
	if !held { // before the API is asked, whose word is then the newer one
		here = p.cluster.inPods(ctx)
	}
	w, err := p.cluster.ask(ctx, p.name, p.step.MountPoint.PodUID, p.step.Writes)
	if err != nil {
		return nil, healer.RefusedBy(healer.RuleAPI, err)
	}
	w.here = here
	if held && slices.ContainsFunc(p.pods, w.leftOver) {
		p.holder.Close()
		p.holder = nil
		return p.allowed(ctx)
	}
	if err := p.cluster.mode(w).require(modeHeal); err != nil {
		return nil, healer.RefusedBy(healer.RuleMode, err)
	}
	if err := w.draining(); err != nil {
		return nil, healer.RefusedBy(healer.RuleDrain, err)
	}
	back, away := p.cluster.driverAway(ctx, p.name.driver, false)
	if away = cmp.Or(away, awayBefore); away != nil { // the API may have denied to say it
		return nil, healer.RefusedBy(healer.RuleDriverGrace, away)
	}
	for _, reason := range p.reasons {
		if err := p.left(w.settings, reason, back); err != nil {
			return nil, healer.RefusedBy(healer.RuleSelfRepair, err)
		}
	}
	if held && p.holder.Alive() != nil { // nobody looked at what else runs
		return nil, healer.RefusedBy(healer.RuleAPI, errors.New("the container that had the volume mounted ended while the API was asked"))
	}
	err = p.wanted(w, held)
	wants := healer.RuleWanted
	if w.unavailable != nil || errors.Is(err, errMayHaveEnded) {
		wants = healer.RuleAPI // its word may be late, and denies nothing
	}
	switch {
	case err != nil && p.holderErr != nil:
		return nil, healer.RefusedBy(wants, fmt.Errorf("%w; nor can it be told whether a container uses it: %w", err, p.holderErr))
	case err != nil:
		return nil, healer.RefusedBy(wants, fmt.Errorf("no running container of this pod is seen to have the volume mounted, and %w", err))
	}
	return w, nil
}

// wanted goes by a running container that has the volume, else by the pod, and for a
// mount point that belongs to no pod by any pod that wants the volume. An API that does
// not answer allows nothing. A step that has a volume staged anew takes the API's word.
func (p *permit) wanted(w *view, held bool) error {
	mountPoint, restage := p.step.MountPoint, p.step.Cost == healer.Restage
	switch {
	case held:
		return nil
	case p.earlier:
		return errors.New("the volume was not seen healthy since the node booted, so kubelet may be about to stage or publish it")
	case restage && mountPoint.Layout.Kind != layout.Staging:
		return errors.New("the path is not where kubelet has volumes staged")
	case mountPoint.PodUID == "" && mountPoint.Layout.Kind == layout.Other:
		return errors.New("the path is none of kubelet's, so no pod tells whether it is wanted")
	}
	return w.wanted(mountPoint.PodUID)
}

// Revalidate implements healer.Permit. It is asked while the mount is in place but
// read-only, as the driver may have begun to unpublish since.
func (p *permit) Revalidate(ctx context.Context) error {
	if err := p.ask(ctx); err != nil {
		return fmt.Errorf("%w: no longer wanted or allowed: %w", healer.ErrRefused, err)
	}
	return nil
}

func (p *permit) Leave(error) {
	if p.holder != nil {
		p.holder.Close()
	}
}
