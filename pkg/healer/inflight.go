package healer

import (
	"fmt"
	"sync"
	"time"
)

// inflight is the table of volumes that are being worked on. A volume is in it
// under several keys at once, because callers may name it in several ways.
//
// Who heals is alone there. Any number may look side by side: nobody who may only
// look can keep a heal waiting. A look during which a heal begins has seen a
// volume that was being changed, and is worth nothing.
type inflight struct {
	mu      sync.Mutex
	held    map[key]*volumeLock
	scanned map[key]map[*volumeLock]bool
}

// ticket is one call's entry.
type volumeLock struct {
	table *inflight
	since time.Time
	keys  []key
	// looks is true for a call that only looks.
	looks bool
	// overtaken is true once a heal has begun meanwhile.
	preempted bool
}

func newInflight() *inflight {
	return &inflight{held: map[key]*volumeLock{}, scanned: map[key]map[*volumeLock]bool{}}
}

// enter makes an entry, or says who is in the way.
func (t *inflight) enter(looks bool, keys ...key) (*volumeLock, error) {
	k := &volumeLock{table: t, since: time.Now(), looks: looks}
	if err := k.add(keys...); err != nil {
		k.leave()
		return nil, err
	}
	return k, nil
}

// add puts further keys under the same entry, all or none.
func (k *volumeLock) add(keys ...key) error {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	for _, key := range keys {
		// A look that saves its record holds the volume, against heals only.
		if other := k.table.held[key]; other != nil && other != k && (!k.looks || !other.looks) {
			return other.inTheWay(key)
		}
	}
	for _, key := range keys {
		if !k.looks {
			for other := range k.table.scanned[key] {
				other.preempted = true
			}
		}
		if k.table.take(key, k) {
			k.keys = append(k.keys, key)
		}
	}
	return nil
}

func (k *volumeLock) inTheWay(at key) error {
	what := "this volume"
	if at.kind == keySuperblock {
		what = "another volume on the same filesystem"
	}
	return &Error{Kind: KindBusy, Text: fmt.Sprintf(
		"an operation on %s is running since %s (%s ago); call again when it is done", what,
		k.since.UTC().Format(time.RFC3339), time.Since(k.since).Round(time.Millisecond))}
}

// take enters a ticket at a key; false: it was there.
func (t *inflight) take(key key, k *volumeLock) bool {
	if !k.looks {
		was := t.held[key]
		t.held[key] = k
		return was == nil
	}
	if t.scanned[key][k] {
		return false
	}
	if t.scanned[key] == nil {
		t.scanned[key] = map[*volumeLock]bool{}
	}
	t.scanned[key][k] = true
	return true
}

// alone calls save while no heal can begin, and at most one look at a volume
// does. A look that was overtaken is no longer worth it, which is an error.
func (k *volumeLock) alone(save func()) error {
	if !k.looks {
		save()
		return nil
	}
	if err := k.current(); err != nil {
		return err
	}
	if !k.hold() {
		return nil // another look saves the same, or a heal has begun
	}
	defer k.release()
	save()
	return nil
}

func (k *volumeLock) hold() bool {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	if k.preempted {
		return false
	}
	for _, key := range k.keys {
		if k.table.held[key] != nil {
			return false
		}
	}
	for _, key := range k.keys {
		k.table.held[key] = k
	}
	return true
}

func (k *volumeLock) release() {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	for _, key := range k.keys {
		delete(k.table.held, key)
	}
}

// current fails for a look during which a heal has begun.
func (k *volumeLock) current() error {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	if !k.preempted {
		return nil
	}
	return &Error{Kind: KindBusy, Text: "an operation on this volume began while it was looked at; call again when it is done"}
}

// leave frees all keys.
func (k *volumeLock) leave() {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	for _, key := range k.keys {
		if !k.looks {
			delete(k.table.held, key)
			continue
		}
		if delete(k.table.scanned[key], k); len(k.table.scanned[key]) == 0 {
			delete(k.table.scanned, key)
		}
	}
	k.keys = nil
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
