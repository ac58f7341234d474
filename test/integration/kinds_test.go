package integration

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// halves are the instants of a rebind around which the place changes: the clone
// has come, stands alone, becomes writable.
var halves = []string{"place/moved", "place/verified", "copies"}

// keep binds what is staged at a path outside kubelet's, so that the data can be
// looked at whatever becomes of the places.
func (v *volume) keep() string {
	v.node.t.Helper()
	t := v.node.t
	keeper := filepath.Join(v.node.dir, "keeper")
	if v.fs == "block" {
		return v.device
	}
	mkdir(t, keeper)
	must(t, unix.Mount(v.staging, keeper, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", keeper, "", unix.MS_PRIVATE, ""))
	return keeper
}

// TestKillOnEveryKind kills the worker or the server during a rebind of every
// kind of volume; the next call, to the same server or a new one, heals.
func TestKillOnEveryKind(t *testing.T) {
	for _, fs := range kinds[1:] { // ext4: TestKill
		for _, instant := range halves {
			t.Run(fs+" worker at "+instant, func(t *testing.T) { testKillWorker(t, fs, instant) })
			t.Run(fs+" server at "+instant, func(t *testing.T) {
				n, v, before := halfway(t, fs, instant)
				sum := v.sum(v.stagedFile())
				answered := n.asyncCall(v.request())
				n.stopped()
				n.kill()
				<-answered
				n.pause = ""
				n.start()
				n.expect("healed", v.request())
				n.sameTable(before)
				if v.sum(v.place(podUID)) != sum {
					t.Error("the data differs")
				}
				v.writable(v.place(podUID))
			})
		}
	}
}

// TestUnpublishEveryKind has a driver unpublish a volume of every kind while a
// rebind is at work on the place.
func TestUnpublishEveryKind(t *testing.T) {
	for _, fs := range kinds[1:] { // ext4: TestUnpublishAtEveryInstant
		for name, unpublish := range unpublishers {
			for _, instant := range halves {
				t.Run(fs+" "+name+" at "+instant, func(t *testing.T) {
					n, v, _ := halfway(t, fs, instant)
					keeper := v.keep()
					sum := v.sum(keeper)
					answered := n.asyncCall(v.request())
					worker := n.stopped()
					first := unpublish(v.place(podUID))
					resume(t, worker)
					<-answered
					if v.sum(keeper) != sum {
						t.Fatalf("the volume lost data; the driver got %v", first)
					}
					eventually(t, "kubelet's next tries succeed", func() bool { return unpublish(v.place(podUID)) == nil })
					if v.sum(keeper) != sum {
						t.Fatal("the volume lost data in the end")
					}
				})
			}
		}
	}
}

// everyKinds are the conditions that a volume of any kind can have. A raw block
// volume has no filesystem that could be read-only.
var everyKinds = map[string]struct {
	breaks func(t *testing.T, v *volume)
	says   []string
	block  bool
}{
	"staged mount and bind gone": {func(t *testing.T, v *volume) {
		v.unpublish()
		must(t, unix.Unmount(v.stagedFile(), 0))
	}, []string{"NotMounted", "StagingNotMounted"}, true},
	"bound twice": {func(t *testing.T, v *volume) {
		must(t, unix.Mount("", v.place(podUID), "", unix.MS_PRIVATE, ""))
		v.publishAgain()
	}, []string{"StackedMounts", "2 mounts"}, true},
	"another volume's": {func(t *testing.T, v *volume) {
		other := v.node.newVolume(v.fs, "another one")
		v.unpublish()
		must(t, unix.Mount(other.stagedFile(), v.place(podUID), "", unix.MS_BIND, ""))
	}, []string{"WrongVolumeMounted"}, true},
	"read-only mount": {func(t *testing.T, v *volume) {
		must(t, unix.Mount("", v.place(podUID), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	}, []string{"ReadOnlyFilesystem", "recorded was read-write"}, true},
	"read-only filesystem": {func(t *testing.T, v *volume) {
		must(t, unix.Mount("", v.staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}, []string{"ReadOnlyFilesystem", "filesystem is read-only"}, false},
}

// TestConditionsOfEveryKind breaks a volume of every kind, asks twice, and sees
// that nothing moved and no data changed.
func TestConditionsOfEveryKind(t *testing.T) {
	for _, fs := range kinds {
		for name, c := range everyKinds {
			if fs == "block" && !c.block {
				continue
			}
			t.Run(fs+" "+name, func(t *testing.T) {
				n := newNode(t, "--standalone").start()
				v := n.newVolume(fs, "sick")
				n.expect("healthy", v.request())
				keeper := v.keep()
				sum := v.sum(keeper)
				c.breaks(t, v)
				before := n.table()
				for range 2 {
					n.expect("abnormal", v.request(), c.says...)
					n.sameTable(before)
				}
				if v.sum(keeper) != sum {
					t.Error("the data differs")
				}
			})
		}
	}
}
