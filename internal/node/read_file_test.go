package node

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	n, root := newNode(t)
	done(t, os.MkdirAll(root+"/d/sub", 0o700))
	done(t, os.WriteFile(root+"/d/sub/f", []byte("text"), 0o600))
	done(t, os.WriteFile(root+"/secret", []byte("text"), 0o600))
	done(t, os.Symlink("../secret", root+"/d/link"))
	done(t, os.Symlink("sub", root+"/d/directory"))
	done(t, unix.Mkfifo(root+"/d/fifo", 0o600))
	if text, err := n.ReadFile(within(t, time.Minute), root+"/d", "sub/f", 4); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	for name, want := range map[string]error{
		"none": os.ErrNotExist, "link": syscall.ELOOP, "directory/f": syscall.ELOOP, "../secret": syscall.EXDEV, root + "/secret": syscall.EXDEV,
	} {
		if _, err := n.ReadFile(within(t, time.Minute), root+"/d", name, 4); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	for name, limit := range map[string]int{"sub/f": 3, "sub": 4, "fifo": 4} {
		if text, err := n.ReadFile(within(t, time.Minute), root+"/d", name, limit); err == nil {
			t.Errorf("%s: %q", name, text)
		}
	}
}

func TestReadFileThatHangs(t *testing.T) {
	n, root := newNode(t, func(c *Config) { c.Pool = newPool(t, time.Second/10) })
	end := hang(t, root+"/hung")
	for i := range 3 {
		_, err := n.ReadFile(within(t, 4*time.Second), root, "hung/f", 4)
		if asked := ended(err) != nil; err == nil || asked != (i == 0) || errors.Is(err, errStorageStuck) != (i > 0) {
			t.Errorf("the %d. time: %v", i+1, err)
		}
		if started := n.cfg.Pool.Stats().Abandoned; started != 1 {
			t.Errorf("%d workers wait", started)
		}
	}
	end()
}
