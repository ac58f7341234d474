package harness

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

var releasedBuild struct {
	once sync.Once
	err  error
}

// Released is a node-healer built as it is shipped, with its worker beside it: the race
// detector of the one that most tests use takes memory of its own.
func Released(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(bin, "released")
	releasedBuild.once.Do(func() {
		releasedBuild.err = errors.Join(os.MkdirAll(dir, 0o755), build(dir, "node-healer", "0", released), build(dir, "node-healer-worker", "0", released))
	})
	Must(tb, releasedBuild.err)
	return filepath.Join(dir, "node-healer")
}
