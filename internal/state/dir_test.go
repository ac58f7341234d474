package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSecondServerIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, path := openDir(t)
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "in use by another node-healer") {
			t.Fatalf("the second Open: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := Open(path)
		if err != nil {
			t.Fatalf("after Close: %v", err)
		}
		_ = again.Close()
	})
}

// What a killed server was about to start has the lock a little longer.
func TestNextServerWaitsForTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, path := openDir(t)
		time.AfterFunc(lockWait/2, func() { _ = d.Close() })
		next, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		_ = next.Close()
	})
}

func TestOpenTightensTheMode(t *testing.T) {
	path := t.TempDir()
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"relative": "state", "empty": "", "a file": file, "below a file": file + "/state"} {
		if d, err := Open(path); err == nil {
			t.Errorf("%s: opened", name)
			_ = d.Close()
		}
	}
}
