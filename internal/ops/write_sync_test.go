package ops

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Reads of an ext4 that has shut itself down succeed, and below Linux 6.15 no super option
// tells: fsync(2) of the root directory does.
func TestSyncTellsAShutdown(t *testing.T) {
	v := newVolume(t, "ext4")
	q := writeTo(v.path)
	q.Sync = true
	if a, err := write(q); err != nil || a.Errno != 0 || a.Unable {
		t.Errorf("healthy: %+v, %v", a, err)
	}
	shutDown(t, v.path)
	if a := probe(ProbeQuery{Path: v.path}); a.Errno != 0 {
		t.Errorf("a probe: %+v", a)
	}
	if a, err := write(q); err != nil || a.Op != facts.OpSync || a.Errno != unix.EIO {
		t.Errorf("shut down: %+v, %v", a, err)
	}
}
