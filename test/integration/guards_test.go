package integration

import (
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// halfway makes a node whose workers stop at the given instants, and a healthy
// volume that has just lost its published bind. It gives the mount table that
// was there before.
func halfway(t *testing.T, fs, instants string) (n *node, v *volume, healthy []string) {
	t.Helper()
	n = newNode(t, "--standalone")
	n.pause = instants
	n.start()
	v = n.newVolume(fs, "halfway")
	n.expect("healthy", v.request())
	healthy = n.table()
	v.unpublish()
	return n, v, healthy
}

// paused gives a worker that stands still, 0 for none.
func (n *node) paused() int {
	workers := n.workers()
	if i := slices.IndexFunc(workers, func(pid int) bool { return state(pid) == "T" }); i >= 0 {
		return workers[i]
	}
	return 0
}

// unstopped waits for an answer, and fails the test when a worker gets as far as
// the next instant at which it would stop.
func (n *node) unstopped(answered <-chan *healerpb.NodeHealerResponse) *healerpb.NodeHealerResponse {
	n.t.Helper()
	for {
		select {
		case a := <-answered:
			return a
		case <-time.After(2 * time.Millisecond):
		}
		if n.paused() != 0 {
			n.t.Fatalf("the step went on, to one of %s", n.pause)
		}
	}
}

// letGo waits for an answer and lets every worker go on that stops meanwhile.
func (n *node) letGo(answered <-chan *healerpb.NodeHealerResponse) *healerpb.NodeHealerResponse {
	for {
		select {
		case a := <-answered:
			return a
		case <-time.After(2 * time.Millisecond):
		}
		if worker := n.paused(); worker != 0 {
			_ = unix.Kill(worker, unix.SIGCONT)
		}
	}
}

// mountOver mounts a filesystem of nobody's on the place.
func (v *volume) mountOver() {
	v.node.t.Helper()
	must(v.node.t, unix.Mount("stranger", v.place(podUID), "tmpfs", 0, "size=1m"))
}

// TestFirstHalfChecks changes the place during the first half of a rebind. The
// step ends there, what came is left alone, and so is the staged mount, onto
// which everything that is mounted over the driver's bind propagates.
func TestFirstHalfChecks(t *testing.T) {
	for name, c := range map[string]struct {
		instant string
		// never is the instant that the step must not reach.
		never     string
		meanwhile func(v *volume)
		healthy   bool
	}{
		"something is mounted":                 {"place/cloned", "place/checked", (*volume).mountOver, false},
		"the directory is a file now":          {"place/cloned", "place/checked", (*volume).fileInPlace, false},
		"the driver's bind before the move":    {"place/checked", "place/verified", (*volume).publishAgain, true},
		"something is mounted before the move": {"place/checked", "place/verified", (*volume).mountOver, false},
		"something is mounted on ours":         {"place/moved", "place/verified", (*volume).mountOver, false},
	} {
		t.Run(name, func(t *testing.T) {
			n, v, _ := halfway(t, "ext4", c.instant+","+c.never)
			sum := v.sum(v.staging)
			answered := n.asyncCall(v.request())
			worker := n.stopped()
			c.meanwhile(v)
			changed := n.table()
			resume(t, worker)
			first := n.unstopped(answered)
			n.sameTable(changed)
			next := n.letGo(n.asyncCall(v.request()))
			for _, a := range []*healerpb.NodeHealerResponse{first, next} {
				if a == nil || a.GetAbnormal() == c.healthy {
					t.Errorf("got %v", a)
				}
			}
			n.sameTable(changed)
			if v.sum(v.staging) != sum {
				t.Error("the data differs")
			}
		})
	}
}

func (v *volume) fileInPlace() {
	v.node.t.Helper()
	must(v.node.t, os.Remove(v.place(podUID)))
	must(v.node.t, os.WriteFile(v.place(podUID), nil, 0o600))
}

// TestSecondHalfChecks has the driver replace the interim mount by its own, with
// other attributes, during the second half: they stay as they are.
func TestSecondHalfChecks(t *testing.T) {
	// To each instant the one that the step must not reach after it.
	for instant, never := range map[string]string{
		"settle": "settle/checked", "settle/checked": "settle/alone", "settle/alone": "settle/set", "settle/set": "final/alone",
		"copies": "final/alone", "final/checked": "final/alone", "final/alone": "final/set", "final/set": "",
	} {
		t.Run(instant, func(t *testing.T) {
			n, v, _ := halfway(t, "ext4", instant+","+never)
			answered := n.asyncCall(v.request())
			worker := n.stopped()
			must(t, unix.Unmount(v.place(podUID), unix.MNT_DETACH))
			v.publishAgain()
			must(t, unix.Mount("", v.place(podUID), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME, ""))
			changed := n.table()
			resume(t, worker)
			if a := n.unstopped(answered); a == nil {
				t.Error("no answer")
			}
			n.sameTable(changed)
			if a := n.letGo(n.asyncCall(v.request())); a == nil || a.GetAbnormal() {
				t.Errorf("the next call got %v", a)
			}
			n.sameTable(changed)
		})
	}
}

// TestNoLongerWanted ends the container between the two halves: the place is
// left as it was found.
func TestNoLongerWanted(t *testing.T) {
	n := newNode(t)
	n.pause = "place/verified"
	n.start()
	v := n.newVolume("ext4", "no longer wanted")
	c := n.newContainer(podUID, v.place(podUID))
	n.expect("healthy", v.request())
	v.unpublish()
	unmounted := n.table()
	answered := n.asyncCall(v.request())
	worker := n.stopped()
	c.kill()
	resume(t, worker)
	if a := <-answered; a == nil || !a.GetAbnormal() {
		t.Errorf("got %v", a)
	}
	n.sameTable(unmounted)
}
