package integration

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestNFSServer shows that the server of the tests does what they count on: an
// export is there, is stale when it is withdrawn, and comes back.
func TestNFSServer(t *testing.T) {
	for _, version := range []string{"4.2", "3"} {
		t.Run(version, func(t *testing.T) {
			n := harness.NewNode(t)
			s := n.NewNFSServer()
			dir := s.Export("one")
			harness.Must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("first"), 0o600))
			at := filepath.Join(n.Dir, "at")
			harness.Mkdir(t, at)
			s.Mount(version, "one", at)
			raw, err := os.ReadFile(filepath.Join(at, "a"))
			if err != nil || string(raw) != "first" {
				t.Fatalf("got %q %v", raw, err)
			}
			harness.Must(t, os.RemoveAll(dir))
			s.Withdraw("one")
			harness.Eventually(t, "it is stale", func() bool {
				return errors.Is(unix.Statfs(at, &unix.Statfs_t{}), unix.ESTALE)
			})
		})
	}
}
