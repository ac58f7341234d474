package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness"
)

// The pods of TestUpgrade: the same before and after a reboot, whatever number the
// process of the tests has.
const upgradedPod = "0badcafe-0000-4000-8000-000000000001"

// TestUpgradeBefore leaves a state directory, healed volumes and their disks on a
// disk that outlives the machine. TestUpgradeAfter goes on with another kernel.
func TestUpgradeBefore(t *testing.T) {
	harness.PodUID = upgradedPod
	n := harness.NewKeptNode(t, "--standalone").Start()
	first, second := n.NewVolume("ext4", "first"), n.NewVolume("ext4", "second")
	served, _ := n.NewFUSEDisk("served", harness.FUSEConfig{})
	for _, v := range []*harness.Volume{first, second, served} {
		n.Expect("healthy", v.Request())
		v.Unpublish()
		n.Expect("healed", v.Request(), "NotMounted", "rebind")
		n.Expect("healthy", v.Request())
	}
}

// TestUpgradeAfter boots with another kernel on what the node left. Device and mount
// numbers are given out again: the records' old numbers belong to other volumes now,
// and nothing is done because of them.
func TestUpgradeAfter(t *testing.T) {
	harness.PodUID = upgradedPod
	n := harness.NewKeptNode(t, "--standalone").Start()
	audit := auditLines(t, n)
	if audit == 0 {
		t.Fatal("the audit log of before is not there")
	}
	first, second := withDevicesSwapped(t, n)
	before := n.Table()

	// Kubelet has not staged anything yet.
	n.Expect("abnormal", first.Request(), "NotMounted", "StagingNotMounted", "Refused")
	n.SameTable(before)

	// A driver that goes by the old number stages the other disk.
	harness.Must(t, unix.Mount(second.Device, first.Staging, "ext4", unix.MS_NOSUID, ""))
	wrong := n.Table()
	n.Expect("abnormal", first.Request(), "WrongVolumeMounted", "Refused")
	n.SameTable(wrong)
	harness.Must(t, unix.Unmount(first.Staging, 0))

	// All is staged and published as it should be: a FUSE volume of another driver
	// first, so that its number is the first that there is.
	other, _ := n.NewFUSEDisk("new after "+recordedBoot(t, n, "first"), harness.FUSEConfig{})
	c := n.NewContainer(harness.OtherPod, other.MountPoint())
	had := dataOf(c)
	served, _ := n.KeptFUSEDisk("served")
	first.Stage()
	second.Stage()
	volumes := []*harness.Volume{first, second, served}
	for _, v := range volumes {
		v.PublishAgain()
		n.Expect("healthy", v.Request())
	}
	if got := auditLines(t, n); got != audit {
		t.Errorf("%d lines of audit, %d before: something was done", got, audit)
	}
	for _, v := range volumes {
		healedWithItsOwnData(t, n, v)
	}
	if got := dataOf(c); got != had {
		t.Errorf("the container of another volume had %v, and has %v", had, got)
	}
}

// withDevicesSwapped attaches the disks of both ext4 volumes the other way round than
// before the reboot: each one's disk gets the other one's number.
func withDevicesSwapped(t *testing.T, n *harness.Node) (first, second *harness.Volume) {
	t.Helper()
	order := []string{"second", "first"}
	if recordedDev(t, n, "first").Minor > recordedDev(t, n, "second").Minor {
		order = []string{"first", "second"}
	}
	was := recordedDev(t, n, "first")
	attached := map[string]*harness.Volume{}
	for _, id := range order {
		attached[id] = n.KeptVolume("ext4", id)
	}
	first, second = attached["first"], attached["second"]
	if is := deviceNumber(t, second.Device); is != was {
		t.Errorf("the disk of the first volume was %s, and the second one's is %s: the scene is none", was, is)
	}
	return first, second
}

// healedWithItsOwnData takes the mount point away, and has it healed with the data that
// is staged, which is the volume's own.
func healedWithItsOwnData(t *testing.T, n *harness.Node, v *harness.Volume) {
	t.Helper()
	sum := v.Sum(v.Staging)
	v.Unpublish()
	n.Expect("healed", v.Request(), "NotMounted", "rebind")
	if v.Sum(v.MountPoint()) != sum {
		t.Errorf("the data of %s differs", v.ID)
	}
	raw, err := os.ReadFile(filepath.Join(v.MountPoint(), "a"))
	if err != nil || !strings.HasPrefix(string(raw), v.ID) {
		t.Errorf("%s has %q %v", v.ID, raw, err)
	}
}

// recordOf reads what the server has on disk of a volume.
func recordOf(t *testing.T, n *harness.Node, id string) healer.Record {
	t.Helper()
	files, err := filepath.Glob(n.StateDir() + "/records/*.json")
	harness.Must(t, err)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		harness.Must(t, err)
		var r healer.Record
		if harness.Must(t, json.Unmarshal(raw, &r)); r.VolumeID == id {
			return r
		}
	}
	t.Fatalf("there is no record of %s", id)
	return healer.Record{}
}

func recordedDev(t *testing.T, n *harness.Node, id string) facts.Dev {
	t.Helper()
	return recordOf(t, n, id).MountPoints[0].Dev
}

func recordedBoot(t *testing.T, n *harness.Node, id string) string {
	t.Helper()
	return recordOf(t, n, id).BootID
}

func deviceNumber(t *testing.T, path string) facts.Dev {
	t.Helper()
	var st unix.Stat_t
	harness.Must(t, unix.Stat(path, &st))
	return facts.Dev{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
}

// auditLines counts what was done so far.
func auditLines(t *testing.T, n *harness.Node) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.StateDir(), "audit.log"))
	if os.IsNotExist(err) {
		return 0
	}
	harness.Must(t, err)
	return strings.Count(string(raw), "\n")
}
