package engine

import (
	"context"
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// containerScan is what one scan of the volume's containers looks for, and what tells the volume's
// mounts there from those of other volumes.
type containerScan struct {
	// now is the host's mount that works. previous are the superblocks that were the
	// volume's before. needScan are the targets with another mount than the recorded one.
	now      facts.Mount
	previous []facts.Dev
	needScan []healer.MountPoint
	// pods are the volume's. sharing has the pods with another volume of the same type and source: it is
	// found once for all mounts, as a pod may have hundreds.
	pods    []string
	sharing map[string]bool
	// cut is true when not all processes could be read in time: a container that is not
	// among those found may have anything.
	cut bool
	// mounts are those found in containers. onHost are the host's own mounts of the same
	// device numbers, read after the containers' mounts: a number that was given out again in
	// between shows.
	mounts []facts.ContainerMount
	onHost map[facts.Dev][]facts.Mount
}

// containers adds the mounts that containers have of superblocks that are no longer the
// volume's, and what they have instead of the volume. It costs a walk through all
// processes, so it is done while such a superblock may be around, once after the start,
// and while a mount point has another mount than the recorded one.
func (o *observation) containers(ctx context.Context) error {
	if o.c.Block {
		return o.oldDevices(ctx)
	}
	s := containerScan{previous: previousSuperblocks(o.c)}
	for _, p := range o.c.MountPoints {
		if o.mountedAnew(p) {
			s.needScan = append(s.needScan, p)
		}
	}
	working := false
	if s.now, working = o.c.Working(); !working { // nothing could replace a container's mount
		return nil
	}
	nfs := facts.IsNFS(s.now.FSType)
	if nfs && slices.ContainsFunc(o.c.MountPoints, healer.MountPoint.Stale) {
		// A container may be stale, too: each call scans until none is.
		o.remember(func(v *scannedVolume) { v.containers = false })
	}
	first := (facts.IsFUSE(s.now.FSType) || nfs) && !o.known.containers
	if len(s.previous)+len(s.needScan) == 0 && !first {
		return nil
	}
	s.pods = o.c.Pods()
	asked := s.pods
	if o.engine.cfg.Standalone {
		asked = nil // any container
	}
	seen, err := o.node.InContainers(ctx, asked, o.scanQuery(s, first), o.newOnesWork(s.now))
	if err != nil {
		return healer.Failed("look for the containers that have the volume", err)
	}
	s.cut = slices.ContainsFunc(seen.Unverified, func(u facts.Unverified) bool { return u.Why == facts.WhyScanCut })
	o.addUnverified(seen.Unverified, s)
	s.mounts = slices.DeleteFunc(o.startedWith(seen.Mounts, s), func(m facts.ContainerMount) bool { return o.foreign(m.Mount, s) })
	probes, err := o.addContainerMounts(ctx, s)
	if err != nil {
		return err
	}
	o.noteScanned(s, probes)
	return nil
}

// newOnesWork reports whether containers that started after the host's present mounts came need not be
// found. With a record of this boot they prove something. Where a target is bare, has a placeholder or another
// superblock, they have that, and nobody would look for them again. On NFS a directory that they have becomes
// stale without a change of mounts.
func (o *observation) newOnesWork(now facts.Mount) bool {
	return !o.c.RecordOfThisBoot() && !facts.IsNFS(now.FSType) && !slices.ContainsFunc(o.c.MountPoints, func(p healer.MountPoint) bool {
		return p.Role == healer.RoleTarget && (!p.Mounted() || p.Dev() != now.Dev || p.Unfinished())
	})
}

func (o *observation) scanQuery(s containerScan, first bool) facts.Filter {
	q := facts.Filter{Superblocks: s.previous, Current: s.now.Dev}
	remounted := slices.ContainsFunc(s.needScan, func(p healer.MountPoint) bool { return len(p.Stack) > 0 && p.Stack[0].ID != 0 })
	if facts.IsNFS(s.now.FSType) && (first || remounted) { // what is stale may be of the same superblock
		q.Superblocks, q.Current = append(slices.Clone(s.previous), s.now.Dev), facts.Dev{}
	}
	for _, p := range s.needScan {
		q.Beneath = append(q.Beneath, o.beneathMountPoint(p))
	}
	if facts.IsFUSE(s.now.FSType) { // there may be instances from before there was a record
		q.FSType, q.Source = s.now.FSType, s.now.Source
	}
	return q
}

// addUnverified adds the containers that could not be inspected, if they may have a previous
// superblock, or what was at the mount point before the present mount came.
func (o *observation) addUnverified(all []facts.Unverified, s containerScan) {
	replaced := lastReplaced(o.c)
	var meanwhile []facts.Unverified // apart: what of them is in the case already changes gapAt
	for _, u := range all {
		uses := u.PodUID == "" || u.Has || slices.Contains(s.pods, u.PodUID) // else nothing says that it uses the volume
		switch {
		case uses && replaced != 0 && u.Started <= replaced:
			o.c.Unverified = append(o.c.Unverified, u)
		case o.startedMeanwhile(u, s.needScan):
			meanwhile = append(meanwhile, u)
		}
	}
	o.c.UnverifiedStart = meanwhile
}

// foreign reports whether a container's mount, found by its device number or by type and source, is
// of another volume.
func (o *observation) foreign(m facts.Mount, s containerScan) bool {
	switch {
	case slices.Contains(s.previous, m.Dev):
		// Another filesystem may have got the number. A disk may have got another
		// node, and so its filesystem another source. Where nothing is staged, each pod's mount may have one of its own.
		return !slices.ContainsFunc(o.c.MountPoints, func(p healer.MountPoint) bool {
			top, mounted := p.Top()
			alike := m.FSType == top.FSType && (m.Source == top.Source || top.OnDevice())
			return alike && mounted && p.Proven && o.c.Superblock(p).Works()
		})
	case m.Dev == s.now.Dev:
		return !m.Guarded() && (!facts.IsNFS(m.FSType) || m.Source != s.now.Source)
	default:
		// The host has the superblock at a mount point that is not the volume's.
		return slices.ContainsFunc(o.table.Of(m.Dev), func(m facts.Mount) bool {
			_, own := o.c.MountPoint(m.Path)
			return !own
		})
	}
}

// addContainerMounts probes the containers' mounts and adds those of the volume. It returns what the
// probes gave.
func (o *observation) addContainerMounts(ctx context.Context, s containerScan) ([]facts.ContainerProbe, error) {
	if len(s.mounts) == 0 {
		return nil, nil
	}
	probes, err := o.node.ProbeInContainers(ctx, s.mounts)
	if err != nil {
		return nil, healer.Failed("inspect the containers that have the volume", err)
	}
	s.onHost, s.sharing = map[facts.Dev][]facts.Mount{}, o.sharing(s.now)
	for _, m := range s.mounts {
		if _, known := s.onHost[m.Mount.Dev]; !known {
			s.onHost[m.Mount.Dev] = o.refresh(o.table.Of(m.Mount.Dev))
		}
	}
	if o.moved {
		return nil, errMoved
	}
	for i, m := range s.mounts {
		o.addContainerMount(m, probes[i], s)
	}
	return probes, nil
}

// addContainerMount adds a mount point for a container's mount, if that is the volume's and dead,
// or was left unfinished by an interrupted replacement.
func (o *observation) addContainerMount(m facts.ContainerMount, probe facts.ContainerProbe, s containerScan) {
	current := m.Mount.Dev == s.now.Dev
	stale := current && facts.IsNFS(m.Mount.FSType) && probe.Errno == syscall.ESTALE
	unfinished := current && !stale
	if unfinished && facts.IsNFS(m.Mount.FSType) && !m.Mount.Guarded() {
		o.addUnprobed(m, probe)
		return // it is not stale
	}
	recorded, isRecorded := recordedMount(o.c, m)
	if unfinished && (!isRecorded || recorded.Attr.Has(facts.AttrNoSymFollow)) {
		return // the pod asked for these attributes itself, as for a read-only volumeMount
	}
	known := current || slices.Contains(s.previous, m.Mount.Dev)
	answers := probe == (facts.ContainerProbe{})
	if probe.Ended || !known && (answers || probe.Errno == 0) {
		return // the container has ended, or nothing says that the mount is this volume's
	}
	was, _ := o.c.PreviousOf(m.Mount.Dev) // its filesystem may have shut itself down while the host had it
	in := &healer.InContainer{
		ContainerMount: m, Probe: probe, Attr: m.Mount.Attr,
		Ended:   was.Ended || healer.StateOf(m.Mount).Shutdown || o.c.Superblocks[m.Mount.Dev].Shutdown,
		Sharing: sharingOf(m.Mount, s.onHost[m.Mount.Dev]),
	}
	switch {
	case isRecorded && (current || len(s.onHost[m.Mount.Dev]) == 0):
		in.Sharing = recorded.Sharing // the kernel forgets whose slave a mount was when the host's is gone
	case stale && m.Mount.Propagation != (facts.Propagation{}) && !slices.ContainsFunc(o.c.MountPoints, staleOnHost):
		in.Sharing = facts.SharingUnknown // the host's mount is gone, and its number may be another's
	}
	if unfinished {
		in.Attr = recorded.Attr
	}
	in.Proof, in.Unproven = o.prove(m, s)
	switch ofPod := slices.Contains(s.pods, m.PodUID); {
	case answers && !unfinished && !in.Ended:
		o.c.Lingering = append(o.c.Lingering, *in) // two instances that work are the driver's business
		return
	case in.Proof == "" && (!ofPod || !known && s.sharing[m.PodUID]):
		return // it may as well be another volume's, whose files the container would lose
	}
	o.c.MountPoints = append(o.c.MountPoints, healer.MountPoint{
		Role: healer.RoleContainer, Path: m.Path(), PodUID: m.PodUID, Stack: append([]facts.Mount{m.Mount}, m.Below...),
		Inspect: facts.PathInfo{Inspected: true}, InContainer: in,
	})
}

// sharingOf tells how a container's mount shares events while the host still has
// mounts of the same superblock. The numbers of peer groups are given out again, so
// they are compared only among mounts that are there at the same time.
func sharingOf(m facts.Mount, onHost []facts.Mount) facts.Sharing {
	p := m.Propagation
	host := func(group uint64) bool {
		return group != 0 && slices.ContainsFunc(onHost, func(h facts.Mount) bool { return h.Propagation.Shared == group })
	}
	switch {
	case p == facts.Propagation{}:
		return facts.SharingNone
	case host(p.Master) && p.Shared == 0:
		return facts.SharingSlave
	case host(p.Shared):
		return facts.SharingPeer
	}
	return facts.SharingUnknown
}

// addUnprobed adds a container that gave no answer, while others have a stale mount of
// the same superblock.
func (o *observation) addUnprobed(m facts.ContainerMount, probe facts.ContainerProbe) {
	why := facts.WhyProbeFailed
	if probe.TimedOut {
		why = facts.WhyNoAnswer
	}
	if probe.Err == "" && !probe.TimedOut || probe.Ended || !slices.ContainsFunc(o.c.MountPoints, healer.MountPoint.Stale) && !o.c.Replaced(m.Mount.Dev) {
		return
	}
	o.c.Unverified = append(o.c.Unverified, facts.Unverified{Workload: m.Workload, Why: why, Detail: probe.Err, Has: true})
}

// noteScanned remembers that no container was found with a previous superblock, so that no further
// check has to walk over all processes. It does not where one could not be asked.
func (o *observation) noteScanned(s containerScan, probes []facts.ContainerProbe) {
	unknown := s.cut || slices.ContainsFunc(probes, func(p facts.ContainerProbe) bool { return p.Err != "" && !p.Ended })
	found := slices.ContainsFunc(o.c.MountPoints, func(p healer.MountPoint) bool { return p.InContainer != nil })
	if !found && !unknown && (!facts.IsNFS(s.now.FSType) || len(o.c.Unverified) == 0) {
		o.remember(func(v *scannedVolume) { v.containers = true })
	}
}

func staleOnHost(p healer.MountPoint) bool { return p.InContainer == nil && p.Stale() }
