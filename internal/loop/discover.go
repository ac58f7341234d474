package loop

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// readMounts reads the mount table, and has the volumes checked whose mounts changed since the last time.
func (l *Loop) readMounts(start time.Time) {
	mounts, err := l.cfg.Node.VolumeMounts()
	l.logOnce("Cannot read the mount table", err)
	now, since := time.Now(), start
	if start.Sub(l.listenAt) < listenGap { // the change may have waited until the table might be read
		since = l.readAt
	}
	l.readAt = start
	l.listenAt = now.Add(max(listenGap, maxShare*now.Sub(start)))
	if err != nil {
		return
	}
	changed, unknown := l.known.syncMounts(mounts)
	for _, v := range changed {
		v.changed(since, now, l.cfg.Interval)
	}
	if unknown {
		l.discoverAt = earlier(l.discoverAt, later(now, l.mayDiscover))
	}
}

// discovery is the answer of a search for volumes.
type discovery struct {
	paths []facts.VolumePath
	err   error
	took  time.Duration
}

func (l *Loop) discover(ctx context.Context) {
	l.discovering = true
	l.discoverAt = time.Now().Add(l.cfg.Interval)
	start := time.Now()
	go func() {
		paths, err := l.cfg.Node.Volumes(ctx)
		l.follow(ctx, paths)
		l.found <- discovery{paths, err, time.Since(start)}
	}()
}

// follow has events come of the superblocks that are mounted, and of the drivers of these volumes.
func (l *Loop) follow(ctx context.Context, paths []facts.VolumePath) {
	var drivers []string
	for _, p := range paths {
		if l.serves(p) && !slices.Contains(drivers, p.DriverName) {
			drivers = append(drivers, p.DriverName)
		}
	}
	mounts, err := l.cfg.Node.VolumeMounts()
	if err == nil { // else those that are followed stay so
		err = l.events.Follow(ctx, mounts, drivers)
	}
	if err != nil {
		klog.V(2).InfoS("Some events of superblocks and drivers are not followed", keyError, oneLine(err.Error()))
	}
}

// happenedTo has the volumes of a superblock checked.
func (l *Loop) happenedTo(e node.SuperblockEvent) {
	now := time.Now()
	if e.Driver != "" {
		l.driverCameBack(e.Driver, now)
		return
	}
	changed := map[*volume]bool{}
	for path, stack := range l.known.mounts {
		for _, m := range stack {
			if m.dev == e.Dev && m.fuse { // another process may have taken the connection over
				l.discoverAt = earlier(l.discoverAt, later(now, l.mayDiscover))
			}
			if v := l.known.byPath[path]; v != nil && m.dev == e.Dev {
				changed[v] = true
			}
		}
	}
	for v := range changed {
		v.changed(now, now, l.cfg.Interval)
	}
}

// apply takes over which volumes a search found. The checks of those of the first search are spread over
// the interval, also between nodes whose servers start together; a volume that comes later is checked at
// once. Where a directory could not be listed, the volumes that were known there stay.
func (l *Loop) apply(d discovery) {
	now := time.Now()
	l.discovering = false
	l.mayDiscover = now.Add(max(discoverGap, maxShare*d.took))
	l.discoverAt = later(l.discoverAt, l.mayDiscover)
	l.logOnce("Cannot list this node's volumes", d.err)
	paths := slices.DeleteFunc(d.paths, func(p facts.VolumePath) bool { return !l.serves(p) })
	if d.err != nil {
		l.discoverAt = now.Add(max(retryDiscovery, maxShare*d.took))
		var unlisted *facts.UnlistedError
		if !errors.As(d.err, &unlisted) {
			return
		}
		paths = append(paths, l.hidden(unlisted, paths)...)
	}
	l.searched.Store(now.UnixNano())
	spread := l.cfg.Interval
	if l.discovered {
		spread = 0
	}
	l.discovered = true
	l.known.sync(paths, now, spread, l.cfg.Interval)
	l.listenAt = now  // what changed since the last reading did so at any time since then
	l.readMounts(now) // that one may have failed, and changes may not be told
}

// hidden returns the known paths that were not found and lie where the search could not see.
func (l *Loop) hidden(unlisted *facts.UnlistedError, found []facts.VolumePath) (hidden []facts.VolumePath) {
	at := map[string]bool{}
	for _, p := range found {
		at[p.Path] = true
	}
	for _, v := range l.known.all {
		for _, p := range v.paths {
			if !at[p.Path] && unlisted.Hides(p.Path) {
				hidden = append(hidden, p)
			}
		}
	}
	return hidden
}

// serves reports whether a volume is one that a call could name, of a driver that is
// served.
func (l *Loop) serves(p facts.VolumePath) bool {
	return p.VolumeHandle != "" && len(p.VolumeHandle) <= maxIDBytes && p.DriverName != "" && len(p.DriverName) <= maxDriverBytes &&
		(len(l.cfg.Drivers) == 0 || slices.Contains(l.cfg.Drivers, p.DriverName))
}
