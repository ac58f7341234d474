package harness

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Released is a node-healer built as it is shipped, with its worker beside it.
func Released(tb testing.TB) string {
	tb.Helper()
	NeedsHost(tb, "Go")
	dir, err := buildOnce("released", func(to string) error {
		err := os.MkdirAll(to, 0o755)
		for _, name := range underTest {
			err = errors.Join(err, Plain.buildAs(filepath.Join(to, name), name))
		}
		return err
	})
	Must(tb, err)
	return filepath.Join(dir, "node-healer")
}
