package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKillWorkerOnly kills the worker at every instant of a rebind, and asks the
// same server again, whose next workers are let go on.
func TestKillWorkerOnly(t *testing.T) {
	for _, instant := range instants {
		t.Run(instant, func(t *testing.T) { testKillWorker(t, "ext4", instant) })
	}
}

func testKillWorker(t *testing.T, fs, instant string) {
	n, v, before := halfway(t, fs, instant)
	sum := v.sum(v.stagedFile())
	answered := n.asyncCall(v.request())
	must(t, unix.Kill(n.stopped(), unix.SIGKILL))
	if a := n.letGo(answered); a == nil {
		t.Fatal("a lost worker is no error of the question")
	}
	if a := n.letGo(n.asyncCall(v.request())); a == nil || a.GetAbnormal() {
		t.Fatalf("the next call got %v", a)
	}
	n.sameTable(before)
	if v.sum(v.place(podUID)) != sum {
		t.Error("the data differs")
	}
	v.writable(v.place(podUID))
	n.expect("healthy", v.request())
}

// takingOff are the instants at which a worker can be stopped while it takes a
// duplicate off.
var takingOff = []string{"take-off/checked", "unmount/matched", "take-off/done"}

// TestDuplicateAgain takes a duplicate off, and another one, by the same server,
// whose worker is killed at an instant of the first.
func TestDuplicateAgain(t *testing.T) {
	for _, instant := range takingOff {
		t.Run(instant, func(t *testing.T) {
			n := newNode(t, "--standalone")
			n.pause = instant
			n.start()
			v := n.newVolume("ext4", "duplicated")
			n.expect("healthy", v.request())
			before, sum := n.table(), v.sum(v.staging)
			n.interimOn(v.staging, v.place(podUID))
			answered := n.asyncCall(v.request())
			must(t, unix.Kill(n.stopped(), unix.SIGKILL))
			<-answered
			for range 2 {
				if a := n.letGo(n.asyncCall(v.request())); a == nil || a.GetAbnormal() {
					t.Fatalf("the next call got %v", a)
				}
				n.sameTable(before)
				n.interimOn(v.staging, v.place(podUID))
			}
			if v.sum(v.staging) != sum {
				t.Error("the data differs")
			}
		})
	}
}

// TestTakeOffOnlyOurs has the driver unmount once while a duplicate is taken off:
// what it uncovers is the driver's own mount, and stays.
func TestTakeOffOnlyOurs(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "take-off/checked"
	n.start()
	v := n.newVolume("ext4", "uncovered")
	n.expect("healthy", v.request())
	before, own := n.table(), mountID(t, v.place(podUID))
	n.interimOn(v.staging, v.place(podUID))
	answered := n.asyncCall(v.request())
	worker := n.stopped()
	must(t, unix.Unmount(v.place(podUID), 0))
	resume(t, worker)
	if a := <-answered; a == nil || a.GetAbnormal() || strings.Contains(a.GetMessage(), "rebind") {
		t.Errorf("got %v", a)
	}
	if mountID(t, v.place(podUID)) != own {
		t.Error("the driver's own mount was replaced")
	}
	n.sameTable(before)
}

// mountID gives the unique id of the mount at a path.
func mountID(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Statx_t
	must(t, unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID_UNIQUE, &st))
	return st.Mnt_id
}

// TestUnpublishWhileTakingOff has a driver unpublish while a duplicate is taken
// off. Before that is done, a driver that unmounts once and then deletes the
// tree, without a look whether anything is still mounted, would delete through
// its own mount below: no matter what we do.
func TestUnpublishWhileTakingOff(t *testing.T) {
	for name, unpublish := range unpublishers {
		for _, instant := range takingOff {
			if name != "mount-utils" && instant != "take-off/done" {
				continue
			}
			t.Run(name+" at "+instant, func(t *testing.T) {
				n := newNode(t, "--standalone")
				n.pause = instant
				n.start()
				v := n.newVolume("ext4", "unpublished")
				n.expect("healthy", v.request())
				keeper := v.keep()
				sum := v.sum(keeper)
				n.interimOn(v.staging, v.place(podUID))
				answered := n.asyncCall(v.request())
				worker := n.stopped()
				first := unpublish(v.place(podUID))
				resume(t, worker)
				n.letGo(answered)
				if v.sum(keeper) != sum {
					t.Fatalf("the volume lost data; the driver got %v", first)
				}
				eventually(t, "kubelet's next tries succeed", func() bool { return unpublish(v.place(podUID)) == nil })
				if v.sum(keeper) != sum || v.sum(v.staging) != sum {
					t.Fatal("the volume lost data in the end")
				}
			})
		}
	}
}
