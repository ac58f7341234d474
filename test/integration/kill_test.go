package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// instants are all places at which a worker can be stopped while it rebinds, in
// the order in which it comes by.
var instants = []string{
	"place/cloned", "place/checked", "place/moved", "place/verified",
	"settle", "settle/checked", "settle/alone", "settle/set",
	"copies", "final/checked", "final/alone", "final/set",
}

// TestKill kills the worker or the server at every instant of a rebind. One
// more call, to a server that goes on or to a new one, finds the volume healed
// or heals it, and nothing is left over.
func TestKill(t *testing.T) {
	for _, victim := range []string{"worker", "server"} {
		for _, instant := range instants {
			t.Run(victim+" at "+instant, func(t *testing.T) { testKill(t, victim, instant) })
		}
	}
}

func testKill(t *testing.T, victim, instant string) {
	n := newNode(t, "--standalone")
	n.pause = instant
	n.start()
	v := n.newVolume("ext4", "killed")
	n.expect("healthy", v.request())
	before, sum := n.table(), v.sum(v.staging)
	v.unpublish()

	answered := make(chan error, 1)
	go func() { _, err := n.call(v.request()); answered <- err }()
	worker := n.stopped()
	if victim == "worker" {
		must(t, unix.Kill(worker, unix.SIGKILL))
		if err := <-answered; err != nil {
			t.Fatalf("a lost worker is no error of the question: %v", err)
		}
		n.stop()
	} else {
		n.kill()
		if err := <-answered; err == nil {
			t.Error("a killed server answered")
		}
	}

	n.pause = ""
	n.start()
	a, err := n.call(v.request())
	if err != nil || a.GetAbnormal() {
		t.Fatalf("the next call does not heal: %v %v", a, err)
	}
	n.sameTable(before)
	if got := v.sum(v.place(podUID)); got != sum {
		t.Error("the data differs")
	}
	v.writable(v.place(podUID))
	n.expect("healthy", v.request())
}

// TestKillTakingOff kills the worker or the server before and after it takes a
// duplicate off; one more call and all is as before.
func TestKillTakingOff(t *testing.T) {
	for _, victim := range []string{"worker", "server"} {
		for _, instant := range []string{"take-off/checked", "take-off/done"} {
			t.Run(victim+" at "+instant, func(t *testing.T) {
				n := newNode(t, "--standalone")
				n.pause = instant
				n.start()
				v := n.newVolume("ext4", "duplicated")
				n.expect("healthy", v.request())
				before, sum := n.table(), v.sum(v.staging)
				n.interimOn(v.staging, v.place(podUID))
				answered := n.asyncCall(v.request())
				worker := n.stopped()
				if victim == "worker" {
					must(t, unix.Kill(worker, unix.SIGKILL))
					<-answered
					n.stop()
				} else {
					n.kill()
					<-answered
				}
				n.pause = ""
				n.start()
				a, err := n.call(v.request())
				if err != nil || a.GetAbnormal() {
					t.Fatalf("the next call does not heal: %v %v", a, err)
				}
				n.sameTable(before)
				if v.sum(v.place(podUID)) != sum {
					t.Error("the data differs")
				}
			})
		}
	}
}

// TestKilledBetweenHalves shows what stands at the place between the two halves
// of a rebind: a mount through which nothing can be written or deleted.
func TestKilledBetweenHalves(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "place/verified"
	n.start()
	v := n.newVolume("ext4", "interim")
	n.expect("healthy", v.request())
	v.unpublish()
	go func() { _, _ = n.call(v.request()) }()
	n.stopped()
	n.kill()
	for _, line := range n.table() {
		if strings.HasPrefix(line, v.place(podUID)) && !strings.Contains(line, " ro,nosuid,nodev,noexec") {
			t.Errorf("the interim mount is %q", line)
		}
	}
	sum := v.sum(v.staging)
	if err := removeAll(v.place(podUID)); err == nil {
		t.Error("a tree with an interim mount was removed")
	}
	if v.sum(v.staging) != sum {
		t.Error("the volume lost data")
	}
	n.pause = ""
	n.args = nil // not standalone: nobody vouches
	n.start()
	before := n.table()
	n.expect("abnormal", v.request(), "ReadOnlyFilesystem", "interrupted rebind")
	n.sameTable(before)
}
