package healer

import (
	"fmt"
	"sync"
	"time"
)

// inflight is the table of volumes that are being worked on. A volume is in it
// under several keys at once, because callers may name it in several ways.
type inflight struct {
	mu   sync.Mutex
	held map[key]*ticket
}

// ticket is one call's entry.
type ticket struct {
	table *inflight
	since time.Time
	keys  []key
}

func newInflight() *inflight { return &inflight{held: map[key]*ticket{}} }

// enter makes an entry, or says who is in the way.
func (t *inflight) enter(keys ...key) (*ticket, error) {
	k := &ticket{table: t, since: time.Now()}
	if err := k.add(keys...); err != nil {
		return nil, err
	}
	return k, nil
}

// add puts further keys under the same entry, all or none.
func (k *ticket) add(keys ...key) error {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	for _, key := range keys {
		if other := k.table.held[key]; other != nil && other != k {
			what := "this volume"
			if key.kind == keySuperblock {
				what = "another volume on the same filesystem"
			}
			return &Error{Kind: KindBusy, Text: fmt.Sprintf(
				"an operation on %s is running since %s (%s ago); call again when it is done", what,
				other.since.UTC().Format(time.RFC3339), time.Since(other.since).Round(time.Millisecond))}
		}
	}
	for _, key := range keys {
		if k.table.held[key] == nil {
			k.table.held[key] = k
			k.keys = append(k.keys, key)
		}
	}
	return nil
}

// leave frees all keys.
func (k *ticket) leave() {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	for _, key := range k.keys {
		delete(k.table.held, key)
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
