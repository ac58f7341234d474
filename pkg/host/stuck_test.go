package host

import (
	"errors"
	"fmt"
	"testing"
)

type stuckWorker chan struct{}

func (stuckWorker) Error() string            { return "cannot be ended" }
func (s stuckWorker) Ended() <-chan struct{} { return s }

func TestNoSecondWorkerJoinsAStuckOne(t *testing.T) {
	var s stuckProbes
	m, worker := Mount{Dev: Dev{0, 40}, FSType: "fuse.x", Path: "/a"}, make(stuckWorker)
	if s.still(m) {
		t.Error("stuck before anything was")
	}
	s.note(m, errors.New("silent, but ended"))
	if s.still(m) {
		t.Error("an ended worker counts as stuck")
	}
	s.note(m, fmt.Errorf("look: %w", worker))
	if !s.still(m) || !s.still(Mount{Dev: m.Dev, FSType: "fuse.x", Path: "/b", Root: "/sub"}) {
		t.Error("not known at another place of the superblock")
	}
	if s.still(Mount{Dev: Dev{0, 41}}) {
		t.Error("another superblock waits with it")
	}
	close(worker)
	if s.still(m) {
		t.Error("stuck after the worker ended")
	}
}

// Device nodes share the superblock of devtmpfs, and are storages of their own.
func TestStuckDeviceKeepsNoOtherBack(t *testing.T) {
	var s stuckProbes
	node := Mount{Dev: Dev{0, 5}, FSType: "devtmpfs", Root: "/sdb"}
	s.note(node, make(stuckWorker))
	other := node
	other.Root = "/sdc"
	if !s.still(node) || s.still(other) {
		t.Errorf("sdb: %v, sdc: %v", s.still(node), s.still(other))
	}
}
