package integration

import (
	"strings"
	"testing"
)

// instants are all instants at which a worker can be stopped while it rebinds, in
// the order in which it comes by.
var instants = []string{
	"rebind/cloned", "rebind/checked", "rebind/moved", "rebind/verified",
	"finalize", "finalize/checked", "finalize/alone", "finalize/set",
	"finalize/copies", "unmark/checked", "unmark/alone", "unmark/set",
}

// TestKill kills the worker or the server at every instant of a rebind. One
// more call, to a server that goes on or to a new one, finds the volume healed
// or heals it, and nothing is left over.
func TestKill(t *testing.T) {
	for victim, instants := range map[string][]string{"worker": threeOf(instants), "server": instants} {
		for _, instant := range instants {
			t.Run(victim+" at "+instant, func(t *testing.T) { testKill(t, victim, instant) })
		}
	}
}

func testKill(t *testing.T, victim, instant string) {
	h := stopRebind(t, "ext4", instant)
	h.kill(victim)
	h.n.SameTable(h.healthy)
	h.intact(h.v.MountPoint())
	h.v.Writable(h.v.MountPoint())
	h.n.Expect("healthy", h.v.Request())
}

// kill kills the worker or the server, and has a new server heal.
func (h halfway) kill(victim string) {
	h.t.Helper()
	if victim == "worker" {
		h.KillWorker()
		if err := h.Err(); err != nil {
			h.t.Fatalf("a lost worker is no error of the question: %v", err)
		}
		h.n.Stop()
	} else {
		h.n.Kill()
		if h.Err() == nil {
			h.t.Error("a killed server answered")
		}
	}
	h.restart()
	a, err := h.n.Call(h.v.Request())
	if err != nil || a.GetAbnormal() {
		h.t.Fatalf("the next call does not heal: %v %v", a, err)
	}
}

// TestKillUnmountDuplicate kills the worker or the server before and after the umount
// of a duplicate; after one more call all is as before.
func TestKillUnmountDuplicate(t *testing.T) {
	for _, victim := range []string{"worker", "server"} {
		for _, instant := range []string{"unmount-duplicate/checked", "unmount-duplicate/done"} {
			t.Run(victim+" at "+instant, func(t *testing.T) {
				h := stopUnmountDuplicate(t, instant)
				h.kill(victim)
				h.n.SameTable(h.healthy)
				h.intact(h.v.MountPoint())
			})
		}
	}
}

// TestKilledBetweenPlaceAndFinalize shows what is at the mount point between the two halves
// of a rebind: a mount through which nothing can be written or deleted.
func TestKilledBetweenPlaceAndFinalize(t *testing.T) {
	h := stopRebind(t, "ext4", "rebind/verified")
	h.n.Kill()
	h.Answer()
	mountPoint := h.v.MountPoint()
	for _, line := range h.n.Table() {
		if strings.HasPrefix(line, mountPoint) && !strings.Contains(line, " ro,nosuid,nodev,noexec") {
			t.Errorf("the placeholder is %q", line)
		}
	}
	if err := removeAll(mountPoint); err == nil {
		t.Error("a tree with a placeholder was removed")
	}
	h.intact(h.v.Staging)
	h.n.Args = nil // not standalone: the caller does not vouch
	h.restart()
	before := h.n.Table()
	h.n.Expect("abnormal", h.v.Request(), "ReadOnlyFilesystem", "interrupted rebind")
	h.n.SameTable(before)
}
