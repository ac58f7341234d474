package healer

import (
	"context"
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/mount"
)

// containers adds the mounts that containers have of superblocks that are no
// longer the volume's, and what they have instead of the volume. It costs a walk
// through all processes, so it is done while such a superblock may be around, once
// after the start, and while a mount point has another mount than the recorded one.
func (o *observation) containers(ctx context.Context) error {
	volume := volumeKey(o.c.Driver, o.c.Volume.ID)
	if o.c.Block {
		return o.oldDevices(ctx)
	}
	previous, anew := o.c.previousSuperblocks(), o.anew()
	now, found := o.c.working()
	if !found { // what the host has not, a container cannot have
		return nil
	}
	nfs := host.IsNFS(now.FSType)
	if nfs && slices.ContainsFunc(o.c.MountPoints, MountPoint.Stale) {
		o.engine.scanned.writeCheck(volume) // until no container is found that has it, too
	}
	first := (IsFUSE(now.FSType) || nfs) && o.engine.scanned.first(volume)
	if len(previous)+len(anew) == 0 && !first {
		return nil
	}
	pods := o.pods()
	asked := pods
	if o.engine.cfg.Standalone {
		asked = nil // any container
	}
	q := host.MountQuery{Superblocks: previous, Current: now.Dev}
	remounted := slices.ContainsFunc(anew, func(p MountPoint) bool { return len(p.Stack) > 0 && p.Stack[0].ID != 0 })
	if nfs && (first || remounted) { // what is stale may be of the same superblock
		q.Superblocks, q.Current = append(slices.Clone(previous), now.Dev), host.Dev{}
	}
	for _, p := range anew {
		if dir, known := o.beneathMountPoint(p); known {
			q.Beneath = append(q.Beneath, dir)
		}
	}
	if IsFUSE(now.FSType) { // there may be instances from before there was a record
		q.FSType, q.Source = now.FSType, now.Source
	}
	seen, err := o.node.InContainers(ctx, asked, q)
	if err != nil {
		return Failed("look for the containers that have the volume", err)
	}
	o.c.Unverified = slices.DeleteFunc(o.c.startedBefore(seen.Unverified), func(u host.Unverified) bool {
		return u.PodUID != "" && !u.Has && !slices.Contains(pods, u.PodUID) // nothing says that it uses the volume
	})
	o.c.UnverifiedStart = slices.DeleteFunc(o.startedMeanwhile(seen.Unverified, anew), func(u host.Unverified) bool {
		return slices.Contains(o.c.Unverified, u) // named already
	})
	seen.Mounts = slices.DeleteFunc(o.startedWith(seen.Mounts, anew, now), func(c host.ContainerMount) bool {
		switch m := c.Mount; {
		case slices.Contains(previous, m.Dev):
			// The number may be another one's by now. A disk may have got another
			// node, and so its filesystem another source.
			return m.FSType != now.FSType || m.Source != now.Source && now.Dev.Major == 0
		case m.Dev == now.Dev:
			return !m.Guarded() && (!host.IsNFS(m.FSType) || m.Source != now.Source)
		default:
			return o.propagatedMounts(m.Dev)
		}
	})
	defer func() {
		found := slices.ContainsFunc(o.c.MountPoints, func(p MountPoint) bool { return p.InContainer != nil })
		if !found && (!nfs || len(o.c.Unverified) == 0) {
			o.engine.scanned.note(volume)
		}
	}()
	if len(seen.Mounts) == 0 {
		return nil
	}
	sights, err := o.node.ProbeInContainers(ctx, seen.Mounts)
	if err != nil {
		return Failed("look into the containers that have the volume", err)
	}
	s := sifting{now: now, previous: previous, pods: pods, all: seen.Mounts, others: map[string]bool{}, onHost: map[host.Dev][]host.Mount{}}
	for _, m := range seen.Mounts {
		if _, known := s.onHost[m.Mount.Dev]; !known {
			s.onHost[m.Mount.Dev] = o.fresh(o.table.Of(m.Mount.Dev))
		}
	}
	if o.moved {
		return errMoved
	}
	for _, pod := range pods {
		s.others[pod] = o.othersOfPod(pod, now)
	}
	for i, m := range seen.Mounts {
		o.containerMountOf(m, sights[i], s)
	}
	return nil
}

// sifting is what tells a mount in a container from one that is none of ours.
type sifting struct {
	// now is the mount that the host has and that works, previous are the superblocks
	// that were the volume's.
	now      host.Mount
	previous []host.Dev
	// pods are the volume's, others those of them that have another volume of this
	// kind. all are the mounts that were seen.
	pods   []string
	others map[string]bool
	all    []host.ContainerMount
	// onHost are the host's own mounts of the superblocks, read after the containers'.
	onHost map[host.Dev][]host.Mount
}

// containerMountOf makes a mount point of what a container has, if it is the volume's, and
// dead or unfinished.
func (o *observation) containerMountOf(m host.ContainerMount, sight host.ContainerProbe, s sifting) {
	stale := m.Mount.Dev == s.now.Dev && host.IsNFS(m.Mount.FSType) && sight.Errno == syscall.ESTALE
	unfinished := m.Mount.Dev == s.now.Dev && !stale
	if unfinished && host.IsNFS(m.Mount.FSType) && !m.Mount.Guarded() {
		o.besideStale(m, sight)
		return // as good as the host's, as far as it says
	}
	note, noted := o.c.noted(m)
	if unfinished && (!noted || note.Attr.Has(host.AttrNoSymFollow)) {
		return // somebody wants it as it is
	}
	known := unfinished || stale || slices.Contains(s.previous, m.Mount.Dev)
	answers := sight == (host.ContainerProbe{})
	if sight.Ended || !known && (answers || sight.Errno == 0) {
		return // it is gone, or nothing says that it is this volume's
	}
	inContainer := &InContainer{ContainerMount: m, Inspection: sight, Attr: m.Mount.Attr, Sharing: host.SharingOf(m.Mount, s.onHost[m.Mount.Dev])}
	switch {
	case noted && (unfinished || stale || len(s.onHost[m.Mount.Dev]) == 0):
		inContainer.Sharing = note.Sharing // which the kernel forgets with the host's mount
	case stale && m.Mount.Propagation != (host.Propagation{}) && !slices.ContainsFunc(o.c.MountPoints, MountPoint.staleOnHost):
		inContainer.Sharing = host.SharingUnknown // the host's mount is gone, and its number may be another's
	}
	if unfinished {
		inContainer.Attr = note.Attr
	}
	inContainer.Ended = o.c.ended(m.Mount)
	inContainer.Proof, inContainer.WriteCheck = o.prove(m, s.all, s.now)
	switch mine := slices.Contains(s.pods, m.PodUID); {
	case answers && !unfinished && !inContainer.Ended:
		o.c.Lingering = append(o.c.Lingering, *inContainer) // two instances that work are the driver's business
		return
	case inContainer.Proof == "" && (!mine || !known && s.others[m.PodUID]):
		return // it may as well be another volume's
	}
	o.c.MountPoints = append(o.c.MountPoints, MountPoint{
		Role: RoleContainer, Path: m.Path(), PodUID: m.PodUID, Stack: append([]host.Mount{m.Mount}, m.Below...),
		Inspect: host.PathInfo{Inspected: true}, InContainer: inContainer,
	})
}

// besideStale names a container that said nothing, while others have something stale
// of the same superblock.
func (o *observation) besideStale(m host.ContainerMount, sight host.ContainerProbe) {
	why := sight.Unable
	if sight.Silent {
		why = "it does not answer"
	}
	if why == "" || sight.Ended || !slices.ContainsFunc(o.c.MountPoints, MountPoint.Stale) && !o.c.Replaced(m.Mount.Dev) {
		return
	}
	o.c.Unverified = append(o.c.Unverified, host.Unverified{PodUID: m.PodUID, ContainerID: m.ContainerID, Why: why, Has: true})
}

// elsewhere is true when the host has a superblock at a mount point that is not the
// volume's.
func (o *observation) propagatedMounts(dev host.Dev) bool {
	return slices.ContainsFunc(o.table.Of(dev), func(m host.Mount) bool {
		_, own := o.c.MountPoint(m.Path)
		return !own
	})
}

// IsFUSE is true for a filesystem that a daemon serves.
func IsFUSE(fsType string) bool {
	return mount.IsType(fsType, mount.FUSE)
}

// working gives the proven mount on the host that a container should have: the staged
// one, or what is published where nothing is staged.
func (c Case) working() (host.Mount, bool) {
	mountPoints := slices.Clone(c.MountPoints)
	if staged, found := c.Staged(); found {
		mountPoints = slices.Insert(mountPoints, 0, staged)
	}
	for _, p := range mountPoints {
		if top, mounted := p.Top(); mounted && p.Proven && works(c.Superblock(p)) && !top.Placeholder() {
			return top, true
		}
	}
	return host.Mount{}, false
}

// pods gives the pods of the volume's proven mount points.
func (o *observation) pods() []string {
	pods := []string{}
	for _, p := range o.c.MountPoints {
		if p.Proven && p.PodUID != "" && !slices.Contains(pods, p.PodUID) {
			pods = append(pods, p.PodUID)
		}
	}
	return pods
}
