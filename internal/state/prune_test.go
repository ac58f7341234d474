package state

import (
	"os"
	"path/filepath"
	"testing"
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
	for _, id := range []string{"old", "young"} {
		if err := records.Save(healer.Record{Version: healer.RecordVersion, Driver: "d", VolumeID: id}); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-recordLifetime - time.Hour)
	if err := os.Chtimes(records.path("d", "old"), past, past); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(records.dir, "torn.json.new"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := records.Prune(time.Now()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(records.dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != filepath.Base(records.path("d", "young")) {
		t.Errorf("left: %v", entries)
	}
}
