package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBusyDuplicate leaves an interim mount alone that somebody has a file open
// on, and takes it off when they have closed it.
func TestBusyDuplicate(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "busy")
	n.expect("healthy", v.request())
	before := n.table()
	n.interimOn(v.staging, v.place(podUID))
	held, err := os.Open(filepath.Join(v.place(podUID), "a"))
	must(t, err)
	defer held.Close()
	stacked := n.table()
	for range 2 {
		n.expect("abnormal", v.request(), "StackedMounts", "take-off-duplicate", "busy")
		n.sameTable(stacked)
	}
	must(t, held.Close())
	n.expect("healed", v.request(), "take-off-duplicate")
	n.sameTable(before)
}

// TestCloneIsPrivate mounts something inside the staged mount, or inside the
// clone, while the clone is already at the place: it appears only where it was
// mounted.
func TestCloneIsPrivate(t *testing.T) {
	for name, inside := range map[string]func(v *volume) string{
		"staging": func(v *volume) string { return v.staging },
		"place":   func(v *volume) string { return v.place(podUID) },
	} {
		t.Run(name, func(t *testing.T) {
			n, v, _ := halfway(t, "ext4", "place/moved")
			answered := n.asyncCall(v.request())
			worker := n.stopped()
			target := filepath.Join(inside(v), "sub")
			must(t, unix.Mount("stranger", target, "tmpfs", 0, "size=1m"))
			resume(t, worker)
			if a := <-answered; a == nil || a.GetAbnormal() {
				t.Errorf("got %v", a)
			}
			for _, line := range n.table() {
				if strings.Contains(line, "stranger") && !strings.HasPrefix(line, target+" ") {
					t.Errorf("what was mounted on %s is also %q", target, line)
				}
			}
		})
	}
}

// TestUnpublishDuringACheck unmounts a place whose filesystem is just being
// asked and does not answer: the check does not make it busy.
func TestUnpublishDuringACheck(t *testing.T) {
	n := newNode(t, "--standalone", "--probe-timeout=30s").start()
	v := n.newVolume("tmpfs", "mute")
	v.unpublish()
	must(t, unix.Unmount(v.staging, 0))
	d := mountFuse(t, v.staging)
	v.publishAgain()
	n.expect("healthy", v.request())
	d.mute.Store(true)
	answered := n.asyncCall(v.request())
	d.asked()
	if err := unix.Unmount(v.place(podUID), 0); err != nil {
		t.Errorf("a check in flight makes the place busy: %v", err)
	}
	d.abort()
	<-answered
}

// asked waits until somebody waits for an answer of the daemon.
func (d *fuseDaemon) asked() {
	d.t.Helper()
	eventually(d.t, "somebody waits for the daemon", func() bool {
		waiting, err := os.ReadFile(filepath.Join(d.connection, "waiting"))
		must(d.t, err)
		return strings.TrimSpace(string(waiting)) != "0"
	})
}

// TestUnpublishAtEveryTouch unmounts a place of every kind while a check has its
// root directory, or its device, open.
func TestUnpublishAtEveryTouch(t *testing.T) {
	for fs, touches := range map[string][]string{
		"ext4": {"probe/opened", "probe/read"}, "xfs": {"probe/opened", "probe/read"},
		"btrfs": {"probe/opened"}, "tmpfs": {"probe/opened"}, "block": {"probe/read"},
	} {
		for _, instant := range touches {
			t.Run(fs+" at "+instant, func(t *testing.T) {
				n := newNode(t, "--mode=check", "--probe-timeout=30s")
				n.pause = instant
				n.start()
				v := n.newVolume(fs, "touched")
				answered := n.asyncCall(v.request())
				worker := n.stopped()
				if err := unix.Unmount(v.place(podUID), 0); err != nil {
					t.Errorf("a check makes the place busy: %v", err)
				}
				resume(t, worker)
				n.letGo(answered)
			})
		}
	}
}
