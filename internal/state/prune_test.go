package state

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestPrune(t *testing.T) {
	dir, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	records := dir.Records()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		aged := func(path string, age time.Duration) {
			if err := os.Chtimes(path, began.Add(-age), began.Add(-age)); err != nil {
				t.Fatal(err)
			}
		}
		left := func() (names []string) {
			entries, err := os.ReadDir(records.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names
		}
		for id, age := range map[string]time.Duration{"old": recordLifetime + time.Hour, "young": 0} {
			if err := records.Save(healer.Record{Version: healer.RecordVersion, Driver: "d", VolumeID: id}); err != nil {
				t.Fatal(err)
			}
			aged(records.path("d", id), age)
		}
		for name, age := range map[string]time.Duration{"torn.json.new": pruneEvery + time.Hour, "written.json.new": 0} {
			if err := os.WriteFile(filepath.Join(records.dir, name), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			aged(filepath.Join(records.dir, name), age)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { records.Prune(ctx); close(ended) }()
		synctest.Wait()
		if got := left(); len(got) != 2 || got[0] != filepath.Base(records.path("d", "young")) || got[1] != "written.json.new" {
			t.Errorf("left: %v", got)
		}
		time.Sleep(recordLifetime + 2*pruneEvery) // a server runs for months
		if got := left(); len(got) != 0 {
			t.Errorf("left after another lifetime: %v", got)
		}
		cancel()
		<-ended
	})
}
