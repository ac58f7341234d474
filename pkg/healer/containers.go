package healer

import (
	"context"
	"slices"
	"sync"

	"github.com/csi-addons/node-healer/pkg/host"
)

// looked remembers of which volumes the containers were looked into since the
// server started.
type looked struct {
	mu   sync.Mutex
	done map[key]bool
	// newest has the highest mount id of the last time that a volume was healthy with
	// what its record says: the record itself is not written for that.
	newest map[key]uint64
}

// healthy notes a mount id of a time at which the record was true.
func (l *looked) healthy(k key, newest uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest == nil {
		l.newest = map[key]uint64{}
	}
	l.newest[k] = max(l.newest[k], newest)
}

// newestOf gives the highest mount id of a time at which the record was true.
func (l *looked) newestOf(k key, r *Record) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.newest[k], r.Newest)
}

// first is true until done was called for the volume.
func (l *looked) first(k key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.done[k]
}

func (l *looked) note(k key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = map[key]bool{}
	}
	l.done[k] = true
}

// containers adds the mounts that containers have of superblocks that are no
// longer the volume's. It costs a walk through all processes, so it is done while
// such a superblock may be around, and once after the start.
func (o *observation) containers(ctx context.Context) error {
	volume := volumeKey(o.c.Driver, o.c.Volume.ID)
	former := o.c.formerSuperblocks()
	now, found := o.c.working()
	if o.c.Block || !found { // what the host has not, a container cannot have
		return nil
	}
	if len(former) == 0 && (!IsFUSE(now.FSType) || !o.engine.looked.first(volume)) {
		return nil
	}
	pods := o.pods()
	asked := pods
	if o.engine.cfg.Standalone {
		asked = nil // any container
	}
	seen, err := o.node.InContainers(asked, func(m host.Mount) bool {
		switch {
		case slices.Contains(former, m.Dev):
			// The number may be another one's by now. A disk may have got another
			// node, and so its filesystem another source.
			return m.FSType == now.FSType && (m.Source == now.Source || now.Dev.Major != 0)
		case m.Dev == now.Dev:
			return m.Guarded()
		default:
			// Of the same kind, and not mounted on the host: it may be one from
			// before there was a record.
			return IsFUSE(m.FSType) && m.FSType == now.FSType && m.Source == now.Source && !o.elsewhere(m.Dev)
		}
	})
	if err != nil {
		return Failed("look for the containers that have the volume", err)
	}
	o.c.Sandboxes, o.c.Crowded = seen.Sandboxes, seen.Crowded
	defer func() {
		found := slices.ContainsFunc(o.c.Places, func(p Place) bool { return p.Inside != nil })
		if !found && seen.Unseen == 0 {
			o.engine.looked.note(volume)
		}
	}()
	if len(seen.Mounts) == 0 {
		return nil
	}
	others := map[string]bool{}
	for _, pod := range pods {
		others[pod] = o.othersOfPod(pod, now)
	}
	sights, err := o.node.LookInside(ctx, seen.Mounts)
	if err != nil {
		return Failed("look into the containers that have the volume", err)
	}
	for i, m := range seen.Mounts {
		sight := sights[i]
		note, noted := o.c.noted(m)
		if m.Mount.Dev == now.Dev && (!noted || note.Attr.Has(host.AttrNoSymFollow)) {
			continue // somebody wants it as it is
		}
		known := slices.Contains(former, m.Mount.Dev) || m.Mount.Dev == now.Dev
		if sight.PID != 0 {
			m.PID = sight.PID
		}
		sight.PID = 0
		answers := sight == (host.InsideSight{})
		if sight.Ended || !known && (answers || sight.Errno == 0) {
			continue // it is gone, or nothing says that it is this volume's
		}
		if noted {
			m.Mount.Propagation = note.Propagation // which the kernel forgets with the host's mount
		}
		inside := &Inside{ContainerMount: m, Sight: sight, Attr: m.Mount.Attr}
		if m.Mount.Dev == now.Dev {
			inside.Attr = note.Attr
		}
		inside.Proof, inside.Doubt = o.prove(m, seen.Mounts, now)
		if answers && m.Mount.Dev != now.Dev && !host.StateOf(m.Mount).Shutdown {
			o.c.Lingering = append(o.c.Lingering, *inside)
			continue // two instances that work are the driver's business
		}
		if inside.Proof == "" && (!slices.Contains(pods, m.PodUID) || !known && others[m.PodUID]) {
			continue // it may as well be another volume's
		}
		o.c.Places = append(o.c.Places, Place{
			Role: Container, Path: m.Path(), PodUID: m.PodUID, Stack: append([]host.Mount{m.Mount}, m.Below...),
			Look: host.PathLook{Looked: true}, Inside: inside,
		})
	}
	return nil
}

// elsewhere is true when the host has a superblock at a place that is not the
// volume's.
func (o *observation) elsewhere(dev host.Dev) bool {
	return slices.ContainsFunc(o.table.Of(dev), func(m host.Mount) bool {
		_, own := o.c.Place(m.Path)
		return !own
	})
}

// IsFUSE is true for a filesystem that a daemon serves.
func IsFUSE(fsType string) bool {
	return fsType == "fuse" || fsType == "fuseblk" || len(fsType) > 5 && fsType[:5] == "fuse."
}

// working gives the mount on the host that a container should have: the staged
// one, or what is published where nothing is staged.
func (c Case) working() (host.Mount, bool) {
	places := slices.Clone(c.Places)
	if staged, found := c.Staged(); found {
		places = slices.Insert(places, 0, staged)
	}
	for _, p := range places {
		if top, mounted := p.Top(); mounted && works(c.Superblocks[p.Dev()]) && !top.Interim() {
			return top, true
		}
	}
	return host.Mount{}, false
}

// pods gives the pods of the volume's places.
func (o *observation) pods() []string {
	pods := []string{}
	for _, p := range o.c.Places {
		if p.PodUID != "" && !slices.Contains(pods, p.PodUID) {
			pods = append(pods, p.PodUID)
		}
	}
	return pods
}

// prove says why a container's mount is known to be this volume's, or why it is
// not. A device number is used again when the last mount of a superblock is gone,
// so it needs a witness that the superblock is still the volume's own.
func (o *observation) prove(m host.ContainerMount, all []host.ContainerMount, now host.Mount) (proof, doubt string) {
	dev := m.Mount.Dev
	if dev == now.Dev {
		return "an interrupted replacement left it", ""
	}
	if at, here := o.c.onHost(dev); here {
		return "the host has the same filesystem instance at " + at, ""
	}
	for _, f := range o.c.former() {
		if f.Dev != dev {
			continue
		}
		if m.Mount.ID != 0 && m.Mount.ID <= f.Newest {
			return "it was there when this was the volume's filesystem instance", ""
		}
		for _, other := range all {
			if _, known := f.Mount(other.Mount.ID); known && other.Mount.Dev == dev {
				return "it is the filesystem instance that was replaced on the host", ""
			}
		}
	}
	switch r := o.c.Record; {
	case r == nil || r.BootID != o.c.BootID:
		return "", "the volume was not seen healthy in this boot"
	case !slices.ContainsFunc(r.Places, func(p PlaceRecord) bool { return p.Dev == dev }):
		return "", "nothing ties this filesystem instance to the volume"
	case m.Mount.ID == 0 || m.Mount.ID > o.engine.looked.newestOf(volumeKey(o.c.Driver, o.c.Volume.ID), r):
		return "", "it was mounted after the volume was last seen healthy, and another filesystem may have had the device number by then"
	}
	return "it was there when this was the volume's filesystem instance", ""
}

// othersOfPod is true when a pod has another volume of the same type and source on
// the host.
func (o *observation) othersOfPod(pod string, now host.Mount) bool {
	kubelet := o.node.Kubelet()
	return slices.ContainsFunc(o.table.Mounts(), func(h host.Mount) bool {
		l := kubelet.Layout(h.Path)
		if l.Kind != host.LayoutPod || l.PodUID != pod {
			return false
		}
		_, own := o.c.Place(h.Path)
		return !own && h.FSType == now.FSType && h.Source == now.Source
	})
}
