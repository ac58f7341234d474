package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestKillReplacing kills the server at every instant of a replacement. One more
// call to a new one, and all is as before.
func TestKillReplacing(t *testing.T) {
	for _, instant := range replaceInstants {
		t.Run(instant, func(t *testing.T) {
			h, s := stopReplace(t, instant)
			h.kill("server")
			h.n.SameTable(h.healthy)
			s.back()
			s.Writable(s.MountPoint())
			h.n.Expect("healthy", s.Request())
		})
	}
}

// TestKillReplacingWorker kills the worker instead. The same call may try
// something else then, and the next one is answered by the same server.
func TestKillReplacingWorker(t *testing.T) {
	for _, instant := range threeOf(replaceInstants) {
		t.Run(instant, func(t *testing.T) {
			h, s := stopReplace(t, instant)
			h.killWorker()
			s.back()
			h.n.Expect("healthy", s.Request())
		})
	}
}

// killWorker kills the worker, and has the same server heal.
func (h halfway) killWorker() {
	h.t.Helper()
	h.KillWorker()
	if a := h.LetGo(); a == nil {
		h.t.Fatal("a lost worker is no error of the question")
	}
	h.again()
	h.n.SameTable(h.healthy)
}

// TestKillReplacingInUse is the same for a mount that has to be detached, since
// a process has a file of it open.
func TestKillReplacingInUse(t *testing.T) {
	for victim, kill := range map[string]func(h halfway){
		"worker": halfway.killWorker,
		"server": func(h halfway) { h.kill("server") },
	} {
		t.Run(victim, func(t *testing.T) {
			h, s := stopReplace(t, "detach/matched", func(s *served) { keepOpen(t, filepath.Join(s.MountPoint(), "a")) })
			kill(h)
			s.back()
			h.n.Expect("healthy", s.Request())
		})
	}
}

// TestKillReplacingForAContainer kills the server while only a container of
// the pod says that the mount point is wanted: it still has the filesystem that died.
func TestKillReplacingForAContainer(t *testing.T) {
	for _, instant := range threeOf([]string{"replace/beneath", "replace/detached", "finalize", "finalize/set", "unmark/set"}) {
		t.Run(instant, func(t *testing.T) {
			n := harness.NewNode(t)
			n.Pause = instant
			n.Start()
			s := newServed(n, "held").known()
			n.NewContainer(harness.PodUID, s.MountPoint())
			s.die()
			h := halfway{t: t, n: n, v: s.Volume, Begun: n.BeginAndStop(s.Request())}
			h.kill("server")
			s.back()
			n.Expect("healthy", s.Request())
		})
	}
}

// TestKilledReplacing shows what is at the mount point then: nothing through which
// anything can be written or deleted, and nothing that is made writable while
// the caller does not vouch.
func TestKilledReplacing(t *testing.T) {
	for _, instant := range []string{"replace/beneath", "replace/detached", "replace/verified", "finalize/alone"} {
		t.Run(instant, func(t *testing.T) {
			h, s := stopReplace(t, instant)
			h.n.Kill()
			h.Answer()
			live := 0
			for _, m := range harness.Layers(t, s.MountPoint()) {
				if m.Dev == s.disk.Dev() {
					live++
					if !strings.HasPrefix(m.Attr.String(), "ro,nosuid,nodev,noexec") {
						t.Errorf("the placeholder is %s", m.Attr)
					}
				}
			}
			if live != 1 {
				t.Errorf("%d mounts of what is staged stand at the mount point", live)
			}
			if err := removeAll(s.MountPoint()); err == nil {
				t.Error("a tree with a placeholder was removed")
			}
			h.n.Args = nil // not standalone: the caller does not vouch
			h.restart()
			before := h.n.Table()
			h.n.Expect("abnormal", s.Request())
			h.n.SameTable(before)
			h.n.Stop()
			h.n.Args = []string{"--standalone"}
			h.restart()
			h.n.Expect("healed", s.Request())
			s.back()
		})
	}
}

// keepOpen has a file open until the end of the test.
func keepOpen(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	harness.Must(t, err)
	t.Cleanup(func() { _ = f.Close() })
}
