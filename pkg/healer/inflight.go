package healer

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// inflight is the table of volumes that are being worked on. A volume is in it
// under several keys at once, because callers may name it in several ways.
type inflight struct {
	mu   sync.Mutex
	held map[string]*ticket
}

// ticket is one call's entry.
type ticket struct {
	table *inflight
	since time.Time
	keys  []string
}

func newInflight() *inflight { return &inflight{held: map[string]*ticket{}} }

// enter makes an entry, or says who is in the way.
func (t *inflight) enter(keys ...string) (*ticket, error) {
	k := &ticket{table: t, since: time.Now()}
	if err := k.add(keys...); err != nil {
		return nil, err
	}
	return k, nil
}

// add puts further keys under the same entry, all or none.
func (k *ticket) add(keys ...string) error {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	for _, key := range keys {
		if other := k.table.held[key]; other != nil && other != k {
			what := "this volume"
			if strings.HasPrefix(key, superblockPrefix) {
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

// The keys. The separator cannot occur in a driver name or a path.
func pathKey(path string) string         { return "path\x00" + path }
func volumeKey(driver, id string) string { return "volume\x00" + driver + "\x00" + id }
func superblockKey(dev string) string    { return superblockPrefix + dev }

const superblockPrefix = "superblock\x00"
