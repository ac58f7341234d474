package node

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// A process that ends is told once, what is not followed any more never, and nothing is
// left when the context has ended.
func TestSuperblockEvents(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e := (&Node{}).SuperblockEvents(ctx)
	one, onePID := sleeper(t)
	other, otherPID := sleeper(t)
	e.mu.Lock()
	e.add(source{dev: facts.Dev{Minor: 1}, pid: onePID})
	e.add(source{dev: facts.Dev{Minor: 2}, pid: otherPID})
	f := e.followed[source{dev: facts.Dev{Minor: 1}, pid: onePID}]
	e.mu.Unlock()
	_ = one.Process.Kill()
	select {
	case event := <-e.Events():
		if event != (SuperblockEvent{Dev: facts.Dev{Minor: 1}}) {
			t.Errorf("told of %v", event)
		}
	case <-time.After(time.Minute):
		t.Fatal("not told")
	}
	if f.SetDeadline(time.Time{}) == nil {
		t.Error("the descriptor is left")
	}
	if err := e.Follow(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	cancel()
	for event := range e.Events() {
		t.Errorf("told of %v", event)
	}
	if e.followed != nil {
		t.Errorf("left: %v", e.followed)
	}
	if err := e.Follow(t.Context(), nil, nil); err != nil { // a late one
		t.Error(err)
	}
}

// A walk may find a process gone before its end is told: it is told nevertheless.
func TestFollowAfterAnEndThatIsNotTold(t *testing.T) {
	n, _ := newNode(t)
	n.walks.walk = walked(ops.ProcessesAnswer{})
	e := n.SuperblockEvents(t.Context())
	daemon, pid := sleeper(t)
	dev := facts.Dev{Minor: 1}
	e.mu.Lock()
	e.add(source{dev: dev, pid: pid})
	e.mu.Unlock()
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
	done(t, e.Follow(t.Context(), []facts.Mount{{Dev: dev, FSType: "fuse.x"}}, nil))
	told(t, e, SuperblockEvent{Dev: dev})
}

// sleeper is a process that ends with the test.
func sleeper(t *testing.T) (*exec.Cmd, int) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sleep", "60")
	done(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c, c.Process.Pid
}

// When the processes cannot be walked over, the daemons that are known are followed nevertheless.
func TestFollowWithoutAWalk(t *testing.T) {
	n, _ := newNode(t)
	e := n.SuperblockEvents(t.Context())
	daemon, pid := sleeper(t)
	served, gone := facts.Dev{Minor: 77}, facts.Dev{Minor: 78}
	_, otherPID := sleeper(t)
	e.mu.Lock()
	e.add(source{dev: served, pid: pid})
	e.add(source{dev: gone, pid: otherPID})
	e.mu.Unlock()
	noWalk, cancel := context.WithCancel(t.Context())
	cancel()
	err := e.Follow(noWalk, []facts.Mount{{Dev: served, FSType: "fuse.x"}}, nil)
	if err == nil || !strings.Contains(err.Error(), "follow daemons") {
		t.Errorf("got %v", err)
	}
	e.mu.Lock()
	if len(e.followed) != 1 {
		t.Errorf("followed: %v", e.followed)
	}
	e.mu.Unlock()
	_ = daemon.Process.Kill()
	told(t, e, SuperblockEvent{Dev: served})
}

// told waits for an event. Others may come before.
func told(t *testing.T, e *SuperblockEvents, want SuperblockEvent) {
	t.Helper()
	for late := time.After(time.Minute); ; {
		select {
		case got := <-e.Events():
			if got == want {
				return
			}
		case <-late:
			t.Fatalf("not told of %v", want)
		}
	}
}

// What a walk over the processes did not come to is not gone, nor what it did not find.
func TestFollowAfterAWalkThatMissesProcesses(t *testing.T) {
	n, _ := newNode(t)
	e := n.SuperblockEvents(t.Context())
	_, pid := sleeper(t)
	_, newPID := sleeper(t)
	served := facts.Dev{Minor: 77}
	e.mu.Lock()
	e.add(source{dev: served, pid: pid})
	e.mu.Unlock()
	for _, tc := range []struct {
		walk ops.ProcessesAnswer
		want int
	}{
		{ops.ProcessesAnswer{}, 1},
		{ops.ProcessesAnswer{Cut: true}, 1},
		{ops.ProcessesAnswer{Unread: 1, Daemons: []facts.FUSEDaemon{{Connection: served.FUSEConnection(), PID: newPID}}}, 2},
		{ops.ProcessesAnswer{Daemons: []facts.FUSEDaemon{{Connection: served.FUSEConnection(), PID: pid}}}, 1},
	} {
		n.walks.walk = walked(tc.walk)
		wanted, err := e.daemons(t.Context(), []facts.Mount{{Dev: served, FSType: "fuse.x"}})
		if err != nil || len(wanted) != tc.want || !slices.Contains(wanted, source{dev: served, pid: pid}) {
			t.Errorf("%+v: to follow: %v, %v", tc.walk, wanted, err)
		}
	}
}

// A driver that registers itself with kubelet is told of, however its registrar makes the
// socket; other files are not.
func TestDriverThatRegisters(t *testing.T) {
	root := t.TempDir()
	dir := root + "/plugins_registry"
	done(t, os.Mkdir(dir, 0o700))
	e := (&Node{cfg: Config{KubeletRoot: root}}).SuperblockEvents(t.Context())
	for _, name := range []string{"csi.sock", "reg.sock", "a.example.com-reg.sock", "b.example.com-reg.sock.tmp"} {
		done(t, os.WriteFile(dir+"/"+name, nil, 0o600))
	}
	done(t, os.Rename(dir+"/b.example.com-reg.sock.tmp", dir+"/b.example.com-reg.sock"))
	got := map[string]bool{}
	for len(got) < 2 {
		event := <-e.Events()
		got[event.Driver] = true
	}
	if !got["a.example.com"] || !got["b.example.com"] {
		t.Errorf("told of %v", got)
	}
}

// A driver whose container alone was started anew listens in its own directory again. Other
// files there, and links that lead elsewhere, tell of nothing.
func TestDriverThatListensAgain(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"plugins_registry", "plugins/a.example.com", "elsewhere"} {
		done(t, os.MkdirAll(root+"/"+dir, 0o700))
	}
	done(t, os.Symlink("../elsewhere", root+"/plugins/link.example.com"))
	e := (&Node{cfg: Config{KubeletRoot: root}}).SuperblockEvents(t.Context())
	follow := func() error {
		return e.Follow(t.Context(), nil, []string{"a.example.com", "later.example.com", "link.example.com", "../elsewhere", "."})
	}
	if err := follow(); err == nil || !strings.Contains(err.Error(), "link.example.com") {
		t.Errorf("a link is followed: %v", err)
	}
	listens := func(name string) { done(t, os.WriteFile(root+"/"+name, nil, 0o600)) }
	told := func(driver string) {
		t.Helper()
		if event := <-e.Events(); event != (SuperblockEvent{Driver: driver}) {
			t.Errorf("told of %v, want %s", event, driver)
		}
	}
	listens("elsewhere/csi.sock")
	listens("plugins/a.example.com/state.json")
	listens("plugins/a.example.com/csi.sock")
	told("a.example.com")
	done(t, os.RemoveAll(root+"/plugins/a.example.com"))
	for _, dir := range []string{"plugins/later.example.com", "plugins/a.example.com"} {
		done(t, os.Mkdir(root+"/"+dir, 0o700))
	}
	_ = follow()
	listens("plugins/later.example.com/csi.sock")
	told("later.example.com")
	listens("plugins/a.example.com/csi.sock")
	told("a.example.com")
}

// The pod of a driver may have the driver's directory mounted on itself in all of the node, at
// any time, and more than once.
func TestDriverThatListensAgainBeneathAMount(t *testing.T) {
	realKernel(t)
	root := t.TempDir()
	dir := root + "/plugins/a.example.com"
	done(t, os.MkdirAll(dir, 0o700))
	done(t, os.Mkdir(root+"/plugins_registry", 0o700))
	e := (&Node{cfg: Config{KubeletRoot: root}}).SuperblockEvents(t.Context())
	for range 2 {
		onItself(t, dir)
		done(t, e.Follow(t.Context(), nil, []string{"a.example.com"}))
		done(t, os.WriteFile(dir+"/csi.sock", nil, 0o600))
		if event := <-e.Events(); event != (SuperblockEvent{Driver: "a.example.com"}) {
			t.Errorf("told of %v", event)
		}
		done(t, os.Remove(dir+"/csi.sock"))
	}
}
