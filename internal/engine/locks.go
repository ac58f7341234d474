package engine

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// volumeLocks is the table of the calls that work on volumes. A call is in it with several keys at
// once, because callers may name a volume in several ways: by its paths, by driver and volume_id, and
// by a superblock that a step brings.
//
// One heal of a volume runs at a time. Any number of checks run side by side, and none blocks a
// heal: a check during which a heal begins is preempted and fails, as it may have seen a mount
// point in the middle of a step.
type volumeLocks struct {
	mu sync.Mutex
	// calls are those that run, and those that ended while a worker that cannot be killed may
	// still change the volume.
	calls []*volumeLock
}

// volumeLock is one call's entry.
type volumeLock struct {
	table *volumeLocks
	since time.Time
	keys  []key
	// checks is true for a call that only checks.
	checks bool
	// preempted is true once a heal has begun during the check.
	preempted bool
	// saved is there while a check saves its record, and closes when it has done so.
	saved chan struct{}
	// workers are the stuck ones that a call left. Each closes when its worker ends.
	workers []<-chan struct{}
}

// lock makes an entry for a call, or returns a busy error that says which other call has a key.
func (t *volumeLocks) lock(checks bool, keys ...key) (*volumeLock, error) {
	l := &volumeLock{table: t, since: time.Now(), checks: checks}
	if err := l.add(keys...); err != nil {
		return nil, err
	}
	return l, nil
}

// saveWait bounds how long a heal waits for checks that save their records.
const saveWait = time.Second

// add puts further keys under the same entry, all or none. A check holds the volume while it
// saves the record, so that it does not overwrite what a heal puts there; a heal waits for that,
// for saveWait.
func (l *volumeLock) add(keys ...key) error {
	late := time.After(saveWait)
	for {
		saved, err := l.tryAdd(keys...)
		if saved == nil {
			return err
		}
		select {
		case <-saved:
		case <-late:
			return err
		}
	}
}

// tryAdd is add without a wait. saved is not nil where a check that saves the record has one of
// the keys; it closes when that is done.
func (l *volumeLock) tryAdd(keys ...key) (saved <-chan struct{}, err error) {
	t := l.table
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropEnded()
	for _, k := range keys {
		if other := t.holder(k); other != nil && other != l && (!l.checks || !other.checks) {
			return other.saved, other.busy(k)
		}
	}
	if len(l.keys) == 0 {
		t.calls = append(t.calls, l)
	}
	for _, k := range keys {
		if !l.has(k) {
			l.keys = append(l.keys, k)
		}
	}
	for _, other := range t.calls {
		if !l.checks && other.checks && slices.ContainsFunc(keys, other.has) {
			other.preempted = true
		}
	}
	return nil, nil
}

func (l *volumeLock) has(k key) bool { return slices.Contains(l.keys, k) }

// holder returns the call that keeps heals from a key: a heal, or a check that saves its record; nil
// for none.
func (t *volumeLocks) holder(k key) *volumeLock {
	at := slices.IndexFunc(t.calls, func(l *volumeLock) bool { return l.has(k) && (!l.checks || l.saved != nil) })
	if at < 0 {
		return nil
	}
	return t.calls[at]
}

func (l *volumeLock) busy(at key) error {
	what := "this volume"
	if !at.superblock.Zero() {
		what = "another volume on the same filesystem"
	}
	return &healer.Error{Kind: healer.KindBusy, Text: fmt.Sprintf(
		"an operation on %s is running since %s (%s ago); call again when it is done", what,
		l.since.UTC().Format(time.RFC3339), time.Since(l.since).Round(time.Millisecond))}
}

// alone calls save while no heal of the volume can begin, and not while another check saves: that
// one saves the same. It fails for a check that was preempted.
func (l *volumeLock) alone(save func()) error {
	if !l.checks {
		save()
		return nil
	}
	if err := l.current(); err != nil {
		return err
	}
	if !l.hold() {
		return nil // another check saves the same, or a heal has begun
	}
	defer l.release()
	save()
	return nil
}

// hold keeps heals of the volume from beginning until release. It is false where a heal has begun
// or another check holds the volume.
func (l *volumeLock) hold() bool {
	t := l.table
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropEnded()
	if l.preempted || slices.ContainsFunc(l.keys, func(k key) bool { return t.holder(k) != nil }) {
		return false
	}
	l.saved = make(chan struct{})
	return true
}

func (l *volumeLock) release() {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	close(l.saved)
	l.saved = nil
}

// current fails for a check that was preempted.
func (l *volumeLock) current() error {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	if !l.preempted {
		return nil
	}
	return &healer.Error{Kind: healer.KindBusy, Text: "an operation on this volume began while it was checked; call again when it is done"}
}

// unlock ends the call. A volume that a heal leaves with stuck workers stays busy until these have
// ended: one may still act on a mount in the middle of another heal. The lock of a check ends at
// once: its workers change nothing, and the host probes no storage at which one is stuck.
func (l *volumeLock) unlock(workers []<-chan struct{}) {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	if len(workers) > 0 && !l.checks {
		l.workers = workers
		return
	}
	l.table.calls = slices.DeleteFunc(l.table.calls, func(other *volumeLock) bool { return other == l })
}

// dropEnded drops the calls that had stuck workers, which have ended.
func (t *volumeLocks) dropEnded() {
	t.calls = slices.DeleteFunc(t.calls, func(l *volumeLock) bool {
		for _, worker := range l.workers {
			select {
			case <-worker:
			default:
				return false
			}
		}
		return len(l.workers) > 0
	})
}

// key names what is worked on in one way: by a path, by driver and volume_id, or by a superblock.
type key struct {
	path             string
	driver, volumeID string
	superblock       facts.Dev
}

func volumeKey(driver, id string) key { return key{driver: driver, volumeID: id} }
