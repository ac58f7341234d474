package ops

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// guest is a process in a mount namespace of its own that has a dead mount, where
// the host has a live one by now.
type guest struct {
	path string
	swap facts.ContainerSwap
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
	g.swap.Source = mountAt(t, g.path)
	g.swap.Container.PID, g.swap.Container.Namespace = pid, namespaceOf(t, pid)
	root := fmt.Sprintf("/proc/%d/root%s", pid, g.path)
	g.swap.Container.Mount = facts.Mount{Path: g.path, ID: uniqueID(unix.AT_FDCWD, root, 0), OldID: g.top(t).OldID}
	return g
}

// top returns what is last in the process's table at the mount point.
func (g guest) top(t *testing.T) (last facts.Mount) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", g.swap.Container.PID))
	must(t, err)
	defer f.Close()
	n := 0
	must(t, mount.Visit(f, func(e facts.Mount) error {
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
	return fmt.Sprintf("/proc/%d/root%s/%s", g.swap.Container.PID, g.path, name)
}

func run(t *testing.T, swaps ...facts.ContainerSwap) []facts.ContainerProbe {
	t.Helper()
	a, err := replaceInContainers(ReplaceInContainersQuery{Swaps: swaps, Budget: time.Minute})
	must(t, err)
	if len(a) != len(swaps) {
		t.Fatalf("%d results", len(a))
	}
	return a
}

func shares(s facts.Sharing) func(*facts.ContainerSwap) {
	return func(w *facts.ContainerSwap) { w.Sharing = s }
}

func TestSwap(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(*facts.ContainerSwap)
		file     string
		readOnly bool
		want     facts.Propagation
	}{
		"writable":         {change: func(*facts.ContainerSwap) {}, file: "sub/file"},
		"read-only":        {change: func(s *facts.ContainerSwap) { s.Attr = facts.AttrReadOnly }, file: "sub/file", readOnly: true},
		"a directory":      {change: func(s *facts.ContainerSwap) { s.Sub = "sub" }, file: "file"},
		"nobody knows how": {change: shares(facts.SharingUnknown), file: "sub/file"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t, false)
			tc.change(&g.swap)
			if r := run(t, g.swap)[0]; r.Err != "" || r.Errno != 0 || r.Swapped <= 0 {
				t.Fatalf("%+v", r)
			}
			if got, err := os.ReadFile(g.file(tc.file)); err != nil || string(got) != "data" {
				t.Errorf("%q, %v", got, err)
			}
			got := g.top(t).Propagation
			if got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
			err := os.WriteFile(g.file("new"), nil, 0o600)
			if (err != nil) != tc.readOnly || g.top(t).Attr.Has(facts.AttrNoSymFollow) {
				t.Errorf("a write: %v, mounted %s", err, g.top(t).Attr)
			}
		})
	}
}

func another(m *facts.Mount) { m.ID, m.OldID = m.ID+1, m.OldID+1 }

func TestSwapIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		alive  bool
		change func(*facts.ContainerSwap)
		ended  bool
		why    string
	}{
		"it answers again":     {alive: true, why: "answers again"},
		"another mount":        {change: func(s *facts.ContainerSwap) { another(&s.Container.Mount) }},
		"made read-only since": {change: func(s *facts.ContainerSwap) { s.Container.Mount.Attr = facts.AttrReadOnly }, why: "attributes have changed"},
		"another process":      {change: func(s *facts.ContainerSwap) { s.Container.Namespace++ }, ended: true, why: "has ended"},
		"no process":           {change: func(s *facts.ContainerSwap) { s.Container.PID = 1<<22 + 1 }, ended: true, why: "has ended"},
		"staged anew":          {change: func(s *facts.ContainerSwap) { s.Source.ID++ }, why: "mounted anew"},
		"no such directory":    {change: func(s *facts.ContainerSwap) { s.Sub = "gone" }},
		"a way up and around":  {change: func(s *facts.ContainerSwap) { s.Sub = "../mount point" }},
		"no such mount point":  {change: func(s *facts.ContainerSwap) { s.Container.Mount.Path += "/none" }},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t, tc.alive)
			swap := g.swap
			if tc.change != nil {
				tc.change(&swap)
			}
			before := g.top(t)
			if r := run(t, swap)[0]; r.Err == "" || r.Ended != tc.ended || !strings.Contains(r.Err, tc.why) {
				t.Errorf("%+v", r)
			}
			if now := g.top(t); now.OldID != before.OldID || now.Attr != before.Attr {
				t.Errorf("%+v, before %+v", now, before)
			}
		})
	}
}

// beneath puts a clone of the host's mount beneath the process's, as an interrupted swap leaves
// it.
func (g guest) beneath(t *testing.T) (ours facts.Ref) {
	t.Helper()
	if !CanMoveBeneath() {
		t.Skip("the kernel cannot put a mount beneath another one")
	}
	done := make(chan error)
	go func() { // on a thread of its own, which ends with it
		runtime.LockOSThread()
		done <- func() error {
			in, err := openContainer(g.swap.Container)
			if err != nil {
				return err
			}
			defer in.close()
			s := prepareSwap(in, g.swap)
			defer s.close()
			if err := errors.Join(s.err, in.enter()); err != nil {
				return err
			}
			target, err := in.reach(g.swap.Container)
			if err != nil {
				return err
			}
			defer target.close()
			fd, _, err := target.top()
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			ours = s.ours
			return s.move(fd)
		}()
	}()
	must(t, <-done)
	return ours
}

// An interrupted swap is finished only if the mount that it was to replace is still dead.
func TestSwapIsResumed(t *testing.T) {
	dead, alive := newGuest(t, false), newGuest(t, true)
	dead.swap.Ours, alive.swap.Ours = dead.beneath(t), alive.beneath(t)
	before := alive.swap.Container.Mount
	results := run(t, dead.swap, alive.swap)
	if r := results[0]; r.Err != "" || r.Errno != 0 || !dead.swap.Ours.Same(dead.top(t).Ref()) {
		t.Errorf("dead: %+v", r)
	}
	root := fmt.Sprintf("/proc/%d/root%s", alive.swap.Container.PID, alive.path)
	if r := results[1]; !r.Refused || !strings.Contains(r.Err, "answers again") || uniqueID(unix.AT_FDCWD, root, 0) != before.ID {
		t.Errorf("alive: %+v", r)
	}
}

// One that cannot be healed keeps no other back, and each hears of its own.
func TestSwapSeveral(t *testing.T) {
	one, two, three := newGuest(t, false), newGuest(t, true), newGuest(t, false)
	results := run(t, one.swap, two.swap, three.swap)
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
	ended := alive.swap.Container
	ended.Namespace++
	covered := alive.swap.Container
	another(&covered.Mount)
	for name, tc := range map[string]struct {
		target facts.ContainerMount
		want   facts.ContainerProbe
		unable bool
	}{
		"dead":            {target: dead.swap.Container, want: facts.ContainerProbe{Errno: unix.ENOTCONN}},
		"alive":           {target: alive.swap.Container},
		"another process": {target: ended, want: facts.ContainerProbe{Ended: true}, unable: true},
		"another mount":   {target: covered, unable: true},
	} {
		done := make(chan facts.ContainerProbe)
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
