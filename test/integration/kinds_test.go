package integration

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// halves are the instants of a rebind around which the mount point changes: the clone
// has come, stands alone, becomes writable.
var halves = []string{"rebind/moved", "rebind/verified", "finalize/copies"}

// someOf are all the instants in a full run, or else the one in their middle: what is
// shown at each of them with one kind of volume is shown once with the others.
func someOf(instants []string) []string {
	if harness.Full() {
		return instants
	}
	return instants[len(instants)/2:][:1]
}

// threeOf are all the instants in a full run, or else the first, the one in the middle and
// the last: a killed server is shown at every instant, what does less harm at three.
func threeOf(instants []string) []string {
	if harness.Full() || len(instants) <= 3 {
		return instants
	}
	return []string{instants[0], instants[len(instants)/2], instants[len(instants)-1]}
}

// inTurn says whether way, one of several that are shown at each instant, is shown at this
// one: all of them in a full run, or else each in its turn.
func inTurn(instant, way, ways int) bool { return harness.Full() || instant%ways == way }

// TestKillOnEveryKind kills the worker or the server during a rebind of every
// kind of volume; the next call, to the same server or a new one, heals.
func TestKillOnEveryKind(t *testing.T) {
	for _, fs := range kinds[1:] { // ext4: TestKill
		for _, instant := range someOf(halves) {
			t.Run(fs+" worker at "+instant, func(t *testing.T) { testKillWorker(t, fs, instant) })
			t.Run(fs+" server at "+instant, func(t *testing.T) {
				h := stopRebind(t, fs, instant)
				h.n.Kill()
				h.Answer()
				h.restart()
				h.n.Expect("healed", h.v.Request())
				h.n.SameTable(h.healthy)
				h.intact(h.v.MountPoint())
				h.v.Writable(h.v.MountPoint())
			})
		}
	}
}

// TestUnpublishEveryKind has a driver unpublish a volume of every kind while a
// rebind is at work on the mount point.
func TestUnpublishEveryKind(t *testing.T) {
	for _, fs := range kinds[1:] { // ext4: TestUnpublishAtEveryInstant
		t.Run(fs, func(t *testing.T) {
			unpublishAt(t, someOf(halves), func(t *testing.T, instant string, unpublish func(target string) error) {
				var keeper string
				h := stopHealing(t, fs, instant, func(v *harness.Volume) {
					v.Unpublish()
					keeper = v.Keep()
				})
				h.unpublished(unpublish, keeper)
			})
		})
	}
}

// everyKinds are the conditions that a volume of any kind can have. A raw block
// volume has no filesystem that could be read-only, and works as well when it is bound twice.
var everyKinds = map[string]struct {
	breaks func(t *testing.T, v *harness.Volume)
	says   []string
	block  bool
}{
	"staged mount and bind gone": {func(t *testing.T, v *harness.Volume) {
		v.Unpublish()
		harness.Must(t, unix.Unmount(v.StagedFile(), 0))
	}, []string{"NotMounted", "StagingNotMounted"}, true},
	"bound twice": {func(t *testing.T, v *harness.Volume) {
		harness.Must(t, unix.Mount("", v.MountPoint(), "", unix.MS_PRIVATE, ""))
		v.PublishAgain()
	}, []string{"StackedMounts", "2 mounts"}, false},
	"another volume's": {func(t *testing.T, v *harness.Volume) {
		other := v.Node.NewVolume(v.FS, "another one")
		v.Unpublish()
		harness.Must(t, unix.Mount(other.StagedFile(), v.MountPoint(), "", unix.MS_BIND, ""))
	}, []string{"WrongVolumeMounted"}, true},
	"read-only mount": {func(t *testing.T, v *harness.Volume) {
		harness.Must(t, unix.Mount("", v.MountPoint(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	}, []string{"ReadOnlyFilesystem", "recorded was read-write"}, true},
	"read-only filesystem": {func(t *testing.T, v *harness.Volume) {
		harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}, []string{"ReadOnlyFilesystem", "the filesystem "}, false},
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
				n := harness.NewNode(t, "--standalone").Start()
				v := n.NewVolume(fs, "sick")
				n.Expect("healthy", v.Request())
				keeper := v.Keep()
				sum := v.Sum(keeper)
				c.breaks(t, v)
				before := n.Table()
				for range 2 {
					n.Expect("abnormal", v.Request(), c.says...)
					n.SameTable(before)
				}
				if v.Sum(keeper) != sum {
					t.Error("the data differs")
				}
			})
		}
	}
}

// TestBlockVolumeMadeOtherwise leaves alone what drivers make of a raw block volume: one whose node is bound
// once more, as after a restart of kubelet, and one that is a link to its device.
func TestBlockVolumeMadeOtherwise(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("block", "made otherwise")
	n.Expect("healthy", v.Request())
	harness.Must(t, unix.Mount("", v.MountPoint(), "", unix.MS_PRIVATE, ""))
	v.PublishAgain()
	before := n.Table()
	n.Expect("healthy", v.Request())
	n.SameTable(before)

	harness.Must(t, unix.Unmount(v.MountPoint(), 0))
	v.Unpublish()
	harness.Must(t, os.Remove(v.MountPoint()))
	harness.Must(t, os.Symlink(v.Device, v.MountPoint()))
	before = n.Table()
	n.Expect("not judged", v.Request(), "the driver made a symbolic link there and mounted nothing")
	n.SameTable(before)
	if to, err := os.Readlink(v.MountPoint()); err != nil || to != v.Device {
		t.Errorf("the link leads to %q, %v", to, err)
	}
}
