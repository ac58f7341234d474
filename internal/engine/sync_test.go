package engine

import (
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Where the kernel has no word for it, fsync(2) tells that an ext4 shut itself down.
func TestSyncShowsAShutdown(t *testing.T) {
	b := newFixture(t)
	b.engine.cfg.SyncExt4 = true
	b.healthy()
	if len(b.syncs) == 0 {
		t.Error("no sync")
	}
	b.synced = facts.Write{Answer: facts.Answer{Asked: true, Op: "fsync", Errno: syscall.EIO}}
	for range 2 {
		b.heal(volume)
		for dev, sb := range b.last().Superblocks {
			if !sb.Shutdown {
				t.Errorf("%s: %+v", dev, sb)
			}
		}
	}
	shown := func(how string, want bool) {
		t.Helper()
		if _, err := b.engine.Check(t.Context(), volume); err != nil {
			t.Fatal(err)
		}
		for dev, sb := range b.last().Superblocks {
			if sb.Shutdown != want || sb.Write.ShutDown() != want {
				t.Errorf("a check %s: %s: %+v", how, dev, sb)
			}
		}
	}
	shown("after a call that found it", true)
	b.synced.Errno = 0
	b.heal(volume)
	shown("after a call that found nothing", false)
	b.synced.Errno = syscall.EIO
	b.heal(volume)
	for _, at := range []string{staging, podA} {
		b.change(at, func(m *facts.Mount) { m.ID += 1000 })
	}
	shown("of another instance", false)
}

func TestSyncIsNotTried(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"the kernel tells":   func(b *fixture) { b.engine.cfg.SyncExt4 = false },
		"no write is wanted": func(b *fixture) { b.engine.cfg.NoWrite = true },
		"another filesystem": func(b *fixture) {
			for _, at := range []string{staging, podA} {
				b.change(at, func(m *facts.Mount) { m.FSType = "xfs" })
			}
		},
		"check only": func(b *fixture) { b.engine.cfg.CheckOnly = true },
	} {
		b := newFixture(t)
		b.engine.cfg.SyncExt4 = true
		change(b)
		b.heal(volume)
		if len(b.syncs) != 0 {
			t.Errorf("%s: asked at %v", name, b.syncs)
		}
	}
}
