package harness

import (
	"os"
	"path/filepath"
	"testing"
)

// ShippedServer builds a node-healer with its worker as they are deployed, without the
// race detector, which takes several times the memory.
func ShippedServer(tb testing.TB) string {
	tb.Helper()
	if os.Getenv(prebuilt) != "" {
		tb.Skip("there is no Go here to build a server with")
	}
	dir := filepath.Join(bin, "shipped")
	Must(tb, Plain.buildInto(dir))
	return filepath.Join(dir, "node-healer")
}
