package ops

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// guest is a process in a mount namespace of its own that has a dead mount, where
// the host has a live one by now.
type guest struct {
	path   string
	target InContainerTarget
}

// newGuest has the host's mount point dead while the process starts, or alive.
func newGuest(t *testing.T, alive bool) guest {
	t.Helper()
	needsRoot(t)
	dir := realDir(t)
	must(t, unix.Mount("parent", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	g := guest{path: filepath.Join(dir, "mount point")}
	must(t, os.Mkdir(g.path, 0o700))
	if alive {
		must(t, unix.Mount("previous", g.path, "tmpfs", 0, ""))
	} else {
		deadAt(t, g.path)
	}
	pid := holder(t, syscall.CLONE_NEWNS, "none=")
	must(t, unix.Unmount(g.path, unix.MNT_DETACH))
	must(t, unix.Mount("live", g.path, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(g.path, unix.MNT_DETACH) })
	must(t, os.Mkdir(g.path+"/sub", 0o700))
	must(t, os.WriteFile(g.path+"/sub/file", []byte("data"), 0o600))
	g.target = InContainerTarget{PID: pid, Namespace: namespaceOf(t, pid), Path: g.path, Swap: Swap{
		Source: Source{Path: g.path, Mount: topAt(t, g.path)}, Before: unix.MS_PRIVATE,
	}}
	root := fmt.Sprintf("/proc/%d/root%s", pid, g.path)
	g.target.Mount = mount.Ref{ID: uniqueID(unix.AT_FDCWD, root, 0), OldID: g.top(t).OldID}
	return g
}

// top returns what is last in the process's table at the mount point.
func (g guest) top(t *testing.T) (last mount.Mount) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", g.target.PID))
	must(t, err)
	defer f.Close()
	n := 0
	must(t, mount.Visit(f, func(e mount.Mount) error {
		if e.Path == g.path {
			last, n = e, n+1
		}
		return nil
	}))
	if n != 1 {
		t.Errorf("%d mounts at the mount point", n)
	}
	return last
}

func (g guest) file(name string) string {
	return fmt.Sprintf("/proc/%d/root%s/%s", g.target.PID, g.path, name)
}

func run(t *testing.T, targets ...InContainerTarget) []InContainerResult {
	t.Helper()
	a, err := inContainer(ReplaceInContainersQuery{Targets: targets, Budget: time.Minute})
	must(t, err)
	if len(a) != len(targets) {
		t.Fatalf("%d results", len(a))
	}
	return a
}

func TestSwap(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(*Swap)
		file     string
		readOnly bool
	}{
		"writable":    {change: func(*Swap) {}, file: "sub/file"},
		"read-only":   {change: func(s *Swap) { s.Attr = mount.AttrReadOnly }, file: "sub/file", readOnly: true},
		"a directory": {change: func(s *Swap) { s.Source.Sub = "sub" }, file: "file"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t, false)
			tc.change(&g.target.Swap)
			if r := run(t, g.target)[0]; r.Err != "" || r.Errno != 0 || r.Swapped <= 0 {
				t.Fatalf("%+v", r)
			}
			if got, err := os.ReadFile(g.file(tc.file)); err != nil || string(got) != "data" {
				t.Errorf("%q, %v", got, err)
			}
			err := os.WriteFile(g.file("new"), nil, 0o600)
			if (err != nil) != tc.readOnly || g.top(t).Attr.Has(mount.AttrNoSymFollow) {
				t.Errorf("a write: %v, mounted %s", err, g.top(t).Attr)
			}
		})
	}
}

func TestSwapIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		alive  bool
		change func(*InContainerTarget)
		ended  bool
		why    string
	}{
		"it answers again":     {alive: true, why: "answers again"},
		"another mount":        {change: func(t *InContainerTarget) { t.Mount.ID, t.Mount.OldID = t.Mount.ID+1, t.Mount.OldID+1 }},
		"made read-only since": {change: func(t *InContainerTarget) { t.Attr = mount.AttrReadOnly }, why: "attributes have changed"},
		"another process":      {change: func(t *InContainerTarget) { t.Namespace++ }, ended: true, why: "has ended"},
		"no process":           {change: func(t *InContainerTarget) { t.PID = 1<<22 + 1 }, ended: true, why: "has ended"},
		"staged anew":          {change: func(t *InContainerTarget) { t.Swap.Source.Mount.ID++ }, why: "mounted anew"},
		"no such directory":    {change: func(t *InContainerTarget) { t.Swap.Source.Sub = "gone" }},
		"a way up and around":  {change: func(t *InContainerTarget) { t.Swap.Source.Sub = "../mount point" }},
		"no such mount point":  {change: func(t *InContainerTarget) { t.Path += "/none" }},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t, tc.alive)
			target := g.target
			if tc.change != nil {
				tc.change(&target)
			}
			before := g.top(t)
			if r := run(t, target)[0]; r.Err == "" || r.Ended != tc.ended || !strings.Contains(r.Err, tc.why) {
				t.Errorf("%+v", r)
			}
			if now := g.top(t); now.OldID != before.OldID || now.Attr != before.Attr {
				t.Errorf("%+v, before %+v", now, before)
			}
		})
	}
}

// One that cannot be healed keeps no other back, and each hears of its own.
func TestSwapSeveral(t *testing.T) {
	one, two, three := newGuest(t, false), newGuest(t, true), newGuest(t, false)
	results := run(t, one.target, two.target, three.target)
	for i, g := range []guest{one, two, three} {
		failed := i == 1
		if (results[i].Err != "") != failed {
			t.Errorf("%d: %+v", i, results[i])
		}
		if _, err := os.ReadFile(g.file("sub/file")); (err != nil) != failed {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestProbeInContainer(t *testing.T) {
	dead, alive := newGuest(t, false), newGuest(t, true)
	ended := alive.target
	ended.Namespace++
	another := alive.target
	another.Mount.ID, another.Mount.OldID = another.Mount.ID+1, another.Mount.OldID+1
	for name, tc := range map[string]struct {
		target InContainerTarget
		want   InContainerResult
		unable bool
	}{
		"dead":            {target: dead.target, want: InContainerResult{Errno: unix.ENOTCONN}},
		"alive":           {target: alive.target},
		"another process": {target: ended, want: InContainerResult{Ended: true}, unable: true},
		"another mount":   {target: another, unable: true},
	} {
		done := make(chan InContainerResult)
		go func() { // on a thread of its own, which ends with it
			runtime.LockOSThread()
			a, err := probeInContainer(tc.target)
			if err != nil {
				a.Err = "an error: " + err.Error()
			}
			done <- a
		}()
		a := <-done
		if (a.Err != "") != tc.unable || a.Errno != tc.want.Errno || a.Ended != tc.want.Ended {
			t.Errorf("%s: %+v", name, a)
		}
	}
}
