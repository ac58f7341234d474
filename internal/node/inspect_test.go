package node

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// newNode makes a node whose kubelet root is a new directory.
func newNode(t *testing.T, change ...func(*Config)) (*Node, string) {
	t.Helper()
	pool := newPool(t, time.Minute)
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Pool: pool, Namespace: openOwn(t, root), KubeletRoot: root,
		ProbeTimeout: time.Minute, StepTimeout: time.Minute, SlowAnswer: time.Minute, Sysfs: "/sys",
	}
	for _, c := range change {
		c(&cfg)
	}
	node, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return node, root
}

func newPool(t *testing.T, killWait time.Duration, change ...func(*worker.Config)) *worker.Pool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := worker.Config{
		Binary: self, Env: []string{"HOST_TEST_SERVES=1", "GORACE=atexit_sleep_ms=0"}, Max: 2, Idle: 1, KillWait: killWait,
	}
	for _, c := range change {
		c(&cfg)
	}
	pool := worker.NewPool(cfg)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := pool.Close(ctx); err != nil {
			t.Error(err)
		}
		// Close waits for no abandoned worker, which ends once its storage answers.
		for pool.Stats().Abandoned != 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if s := pool.Stats(); s.Living != 0 || s.Abandoned != 0 {
			t.Errorf("left behind: %+v", s)
		}
	})
	return pool
}

func inspectPath(t *testing.T, n *Node, path string) facts.PathInfo {
	t.Helper()
	s, err := n.Inspect(context.Background(), InspectQuery{Paths: []PathQuery{{Path: path, VolData: n.Kubelet().Layout(path).VolData}}})
	if err != nil {
		t.Fatal(err)
	}
	l := s.Paths[path]
	if !l.Inspected || s.Answer.Asked || s.Changed {
		t.Errorf("%+v", s)
	}
	return l
}

func TestInspectPaths(t *testing.T) {
	n, root := newNode(t)
	dir := filepath.Join(root, "pods/uid/volumes/kubernetes.io~csi/pv")
	at := filepath.Join(dir, "mount")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "vol_data.json"), []byte(`{"driverName":"d","volumeHandle":"h"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if l := inspectPath(t, n, at); l.Kind != facts.KindDirectory || l.VolData == nil || *l.VolData != (facts.VolData{DriverName: "d", VolumeHandle: "h"}) {
		t.Errorf("%+v", l)
	}
	if err := os.Symlink(at, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if l := inspectPath(t, n, root+"/link"); l.Kind != facts.KindSymlink || l.Link != at || l.Missing() {
		t.Errorf("%+v", l)
	}
	if l := inspectPath(t, n, root+"/link/x"); l.ParentErrno != syscall.ELOOP || l.Missing() {
		t.Errorf("%+v", l)
	}
	for _, p := range []string{root + "/none", root + "/none/x", dir + "/vol_data.json/x"} {
		if l := inspectPath(t, n, p); !l.Missing() {
			t.Errorf("%s: %+v", p, l)
		}
	}
	if l := inspectPath(t, n, dir+"/vol_data.json"); l.Kind != facts.KindFile {
		t.Errorf("%+v", l)
	}
}

func TestInspectWithoutAWorker(t *testing.T) {
	n, root := newNode(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := n.Inspect(ctx, InspectQuery{Paths: []PathQuery{{Path: root}}}); err == nil {
		t.Error("an answer without a worker")
	}
}

func TestNewNodeChecks(t *testing.T) {
	n, root := newNode(t)
	for name, change := range map[string]func(*Config){
		"no pool":            func(c *Config) { c.Pool = nil },
		"no namespace":       func(c *Config) { c.Namespace = nil },
		"no probe timeout":   func(c *Config) { c.ProbeTimeout = 0 },
		"no slow answer":     func(c *Config) { c.SlowAnswer = 0 },
		"no step timeout":    func(c *Config) { c.StepTimeout = 0 },
		"an unresolved root": func(c *Config) { c.KubeletRoot = root + "/other" },
	} {
		cfg := n.cfg
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if n.Kubelet().Root != root || n.BootID() == "" {
		t.Errorf("%+v, boot %q", n.Kubelet(), n.BootID())
	}
}

func TestAnswerString(t *testing.T) {
	a := facts.Answer{Op: "statx", Errno: syscall.ENOTCONN}
	if got := a.String(); got != "statx: transport endpoint is not connected (ENOTCONN)" {
		t.Error(got)
	}
	if got := (facts.Answer{}).String(); got != "answered" {
		t.Error(got)
	}
}
