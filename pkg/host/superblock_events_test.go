package host

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that ends is told once, what is not followed any more never, and nothing is
// left when the context has ended.
func TestSuperblockEvents(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e, err := (&Node{}).SuperblockEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	start := func() (*exec.Cmd, int) {
		c := exec.CommandContext(t.Context(), "sleep", "60")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		return c, c.Process.Pid
	}
	one, onePID := start()
	other, otherPID := start()
	e.mu.Lock()
	e.add(source{dev: Dev{Minor: 1}, pid: onePID})
	e.add(source{dev: Dev{Minor: 2}, pid: otherPID})
	fd := e.followed[source{dev: Dev{Minor: 1}, pid: onePID}]
	e.mu.Unlock()
	_ = one.Process.Kill()
	select {
	case dev := <-e.Events():
		if dev != (Dev{Minor: 1}) {
			t.Errorf("told of %s", dev)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("not told")
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
		t.Error("the descriptor is left")
	}
	if err := e.Follow(ctx, nil); err != nil {
		t.Fatal(err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	cancel()
	for dev := range e.Events() {
		t.Errorf("told of %s", dev)
	}
	if e.followed != nil || len(e.byFD) > 0 {
		t.Errorf("left: %v", e.followed)
	}
	if err := e.Follow(t.Context(), nil); err != nil { // a late one
		t.Error(err)
	}
}
