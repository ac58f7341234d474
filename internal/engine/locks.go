package engine

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// volumeLocks is the table of the volumes that are being worked on. A volume is in it under
// several keys at once, because callers may name it in several ways: by its paths, by driver and
// volume_id, and by a superblock that a step brings.
//
// One heal of a volume runs at a time. Any number of checks run side by side, and none blocks a
// heal: a check during which a heal begins is preempted and fails, as it may have seen a mount
// point in the middle of a step.
type volumeLocks struct {
	mu     sync.Mutex
	held   map[key]*volumeLock
	checks map[key]map[*volumeLock]bool
	// stuck are the locks of calls that ended, while a worker that cannot be killed may
	// still change the volume.
	stuck []*volumeLock
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
	// saved closes when a check that saves its record has done so.
	saved chan struct{}
	// workers close when the stuck workers end.
	workers []<-chan struct{}
}

func newVolumeLocks() *volumeLocks {
	return &volumeLocks{held: map[key]*volumeLock{}, checks: map[key]map[*volumeLock]bool{}}
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
		if other := t.held[k]; other != nil && other != l && (!l.checks || !other.checks) {
			return other.saved, other.busy(k)
		}
	}
	for _, k := range keys {
		if slices.Contains(l.keys, k) {
			continue
		}
		l.keys = append(l.keys, k)
		if l.checks {
			if t.checks[k] == nil {
				t.checks[k] = map[*volumeLock]bool{}
			}
			t.checks[k][l] = true
			continue
		}
		t.held[k] = l
		for check := range t.checks[k] {
			check.preempted = true
		}
	}
	return nil, nil
}

func (l *volumeLock) busy(at key) error {
	what := "this volume"
	if at.kind == keySuperblock {
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
	if l.preempted || slices.ContainsFunc(l.keys, func(k key) bool { return t.held[k] != nil }) {
		return false
	}
	l.saved = make(chan struct{})
	for _, k := range l.keys {
		t.held[k] = l
	}
	return true
}

func (l *volumeLock) release() {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	for _, k := range l.keys {
		delete(l.table.held, k)
	}
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
		l.table.stuck = append(l.table.stuck, l)
		return
	}
	l.drop()
}

// dropEnded drops the locks whose stuck workers have ended.
func (t *volumeLocks) dropEnded() {
	t.stuck = slices.DeleteFunc(t.stuck, func(l *volumeLock) bool {
		for _, worker := range l.workers {
			select {
			case <-worker:
			default:
				return false
			}
		}
		l.drop()
		return true
	})
}

// drop frees all keys. The table is locked.
func (l *volumeLock) drop() {
	for _, k := range l.keys {
		if !l.checks {
			delete(l.table.held, k)
			continue
		}
		if delete(l.table.checks[k], l); len(l.table.checks[k]) == 0 {
			delete(l.table.checks, k)
		}
	}
	l.keys = nil
}

// key is one way to name what is worked on.
type key struct {
	kind         keyKind
	driver, name string
}

type keyKind int

const (
	keyPath keyKind = iota
	keyVolume
	keySuperblock
)

func pathKey(path string) key         { return key{kind: keyPath, name: path} }
func volumeKey(driver, id string) key { return key{kind: keyVolume, driver: driver, name: id} }
func superblockKey(dev string) key    { return key{kind: keySuperblock, name: dev} }
