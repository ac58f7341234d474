package state

import (
	"io/fs"
	"os"
	"sync"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// cache keeps records that were read, each for as long as its file stays the
// same: a person may remove or restore one.
type cache struct {
	mu    sync.Mutex
	known map[string]cached
}

type cached struct {
	path   string
	file   fs.FileInfo
	record *healer.Record
}

// maxCached bounds what is kept. A node has a few hundred volumes; one that had
// thousands in its time starts anew.
const maxCached = 4096

// get gives nil when the file is another one than was read.
func (c *cache) get(volume string) *healer.Record {
	c.mu.Lock()
	known, found := c.known[volume]
	c.mu.Unlock()
	if !found {
		return nil
	}
	now, err := os.Stat(known.path)
	if err != nil || !same(now, known.file) {
		return nil
	}
	return known.record
}

// same is true for the same content: records are replaced by rename, which
// gives another file with another time.
func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (c *cache) put(volume string, one cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxCached {
		c.known = map[string]cached{}
	}
	c.known[volume] = one
}
