package loop

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// maxVolumes is many times what a node has.
	maxVolumes = 4096
	// maxIDBytes and maxDriverBytes are what a call may name (pkg/nodeserver, CSI).
	maxIDBytes     = 1024
	maxDriverBytes = 63
)

type volumeKey struct{ driver, id string }

// volume is what the loop knows of one volume.
type volume struct {
	key   volumeKey
	paths []facts.VolumePath
	// due is when the volume is checked next, hurried when its last heal, or check that was
	// urgent, began.
	due, hurried time.Time
	running      bool
	// again is true when its mounts changed during the running check.
	again bool
	// driverBack is true when its driver came back while it was checked or healed.
	driverBack bool
	// urgent is true when something happened to it since its last check began.
	urgent bool
	// slow is true when its last check was slow.
	slow bool
	// said is the outcome that was last logged.
	said string
	// checked is when a check last had an answer, which showed verdict and health.
	checked time.Time
	// expected is since when there could be an answer: when the volume came, or the loop
	// was switched on.
	expected time.Time
	verdict  healer.Verdict
	health   []healer.HealthEntry
	// healFailed is what the last heal failed at, until a check finds the volume healthy; checkFailed what the
	// last check did.
	healFailed, checkFailed failure
	sick                    sickness
	// healed is when the loop's last heal of it ended, and tried the same, but zero where that helped.
	healed, tried time.Time
	backoff
}

// failure is zero for none.
type failure struct {
	text string
	at   time.Time
}

func (v *volume) isSick() bool { return !v.sick.since.IsZero() }

// changed makes a volume due because something happened to it, at since or later.
func (v *volume) changed(since, now time.Time, interval time.Duration) {
	if v.running {
		v.again = true
		return
	}
	if since.After(v.healed) && now.Sub(v.healed) > changeGap { // else the loop's own heal did it, most likely
		v.retry(interval, now)
	}
	v.urgent = true
	v.due = earlier(v.due, later(now.Add(changeDelay), v.hurried.Add(changeGap)))
}

// volumes are the volumes of the node, with what is mounted at their paths.
type volumes struct {
	all    []*volume
	byPath map[string]*volume
	// mounts has the mounts stacked on each path.
	mounts map[string][]mounted
}

func newVolumes() volumes {
	return volumes{byPath: map[string]*volume{}, mounts: map[string][]mounted{}}
}

// mounted tells a mount from others: where mount ids are given out again, a new mount may
// have that of the one before.
type mounted struct {
	id   uint64
	dev  facts.Dev
	root string
	fuse bool
}

// sync takes over the paths of all volumes. New volumes are spread over a time; one that
// is known and has a new path is checked as if its mounts had changed.
func (vs *volumes) sync(paths []facts.VolumePath, now time.Time, spread, interval time.Duration) {
	knew, byKey := map[volumeKey]*volume{}, map[volumeKey]*volume{}
	for _, v := range vs.all {
		knew[v.key] = v
	}
	before := vs.byPath
	vs.byPath = map[string]*volume{}
	for _, p := range paths {
		k := volumeKey{p.DriverName, p.VolumeHandle}
		known := knew[k]
		v := cmp.Or(byKey[k], known)
		switch {
		case v == nil && len(byKey) >= maxVolumes:
			continue
		case v == nil:
			v = &volume{key: k, due: now, expected: now}
			if spread > 0 {
				v.due = now.Add(rand.N(spread)) //nolint:gosec // a schedule is no secret
			}
		case known != nil && before[p.Path] != v:
			v.changed(now, now, interval)
		}
		if byKey[k] == nil {
			byKey[k], v.paths = v, nil
		}
		v.paths = append(v.paths, p)
		vs.byPath[p.Path] = v
	}
	vs.all = slices.Collect(maps.Values(byKey))
}

// syncMounts takes over what is mounted. It returns the volumes at whose paths other mounts are than
// before, and whether a search is needed: something is mounted at a path of no known volume, or of a
// superblock that was not there before.
func (vs *volumes) syncMounts(list []facts.Mount) (changed []*volume, unknown bool) {
	before := vs.mounts
	there := map[mounted]bool{}
	for _, stack := range before {
		for _, m := range stack {
			there[m] = true
		}
	}
	vs.mounts = make(map[string][]mounted, len(before))
	stayed := map[facts.Dev]bool{}
	for _, m := range list {
		now := mounted{cmp.Or(m.ID, uint64(m.OldID)), m.Dev, m.Root, facts.IsFUSE(m.FSType)}
		vs.mounts[m.Path] = append(vs.mounts[m.Path], now)
		stayed[m.Dev] = stayed[m.Dev] || there[now]
	}
	for _, wasThere := range stayed {
		// A superblock whose mounts are all new is another one than that which had the same
		// number before: the kernel gives out the lowest that is free. Its events are to be
		// followed.
		unknown = unknown || !wasThere
	}
	differs := map[*volume]bool{}
	for path, stack := range vs.mounts {
		if slices.Equal(stack, before[path]) {
			continue
		}
		differs[vs.byPath[path]] = true
	}
	for path := range before {
		if v := vs.byPath[path]; v != nil && len(vs.mounts[path]) == 0 {
			differs[v] = true
		}
	}
	unknown = unknown || differs[nil]
	delete(differs, nil)
	return slices.Collect(maps.Keys(differs)), unknown
}

// look returns the volumes that could be healed, those that are due and are not being checked, the first
// due first, and when the next one is due, at the latest at next.
func (vs *volumes) look(now, next time.Time) (sick, due []*volume, then time.Time) {
	for _, v := range vs.all {
		if v.sick.healable() {
			sick = append(sick, v)
		}
		switch {
		case v.running:
		case !v.due.After(now):
			due = append(due, v)
		default:
			next = earlier(next, v.due)
		}
	}
	slices.SortFunc(due, func(a, b *volume) int { return a.due.Compare(b.due) })
	return sick, due, next
}

// toCheck returns the paths at which a volume may be checked, the best first: where it is published and
// mounted, where it is published and lost its mount, where it is staged. A staging path without a mount
// is not among them: kubelet may be unstaging the volume. published are those at which kubelet's files name
// it as published.
func (vs *volumes) toCheck(v *volume) (paths, published []string) {
	var mounted, lost, staged []string
	for _, p := range v.paths {
		if !p.Staging {
			published = append(published, p.Path)
		}
		switch there := len(vs.mounts[p.Path]) > 0; {
		case there && !p.Staging:
			mounted = append(mounted, p.Path)
		case there:
			staged = append(staged, p.Path)
		case !p.Staging:
			lost = append(lost, p.Path)
		}
	}
	return slices.Concat(mounted, lost, staged), published
}
