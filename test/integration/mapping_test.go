package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestMapping sees what becomes of a volume on a device-mapper device that fails,
// waits, or is taken away, and that it is healthy again when the device is.
func TestMapping(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(v *harness.Volume, m *harness.Mapping)
		says   []string
		saysOf map[string][]string // besides, of this volume
		mends  func(m *harness.Mapping)
	}{
		"all fails": {
			breaks: func(_ *harness.Volume, m *harness.Mapping) { m.Fail() },
			says:   []string{"DeviceReadError", "read the device", "EIO"},
			saysOf: map[string][]string{"ext4": {"device-mapper device"}, "ext4 on LUKS": {"-luks"}},
			mends:  (*harness.Mapping).Mend,
		},
		"suspended": {
			breaks: func(_ *harness.Volume, m *harness.Mapping) { m.Suspend() },
			says:   []string{"DeviceMappingDead", "is suspended", "dmsetup resume"},
			saysOf: map[string][]string{"ext4 on LUKS": {"-luks\" lies on"}},
			mends:  (*harness.Mapping).Resume,
		},
	} {
		for kind, lay := range onMappings {
			t.Run(name+", "+kind, func(t *testing.T) {
				n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
				next := newNeighbour(n)
				v, m := lay(n)
				n.Expect("healthy", v.Request())
				before := n.Table()
				c.breaks(v, m)
				says := slices.Concat(c.says, c.saysOf[kind])
				if kind == "block" && name == "suspended" {
					says = []string{"NotResponding"} // only the probe knows which device it is
				}
				for range 2 {
					n.Expect("abnormal", v.Request(), says...)
				}
				next.untouched()
				c.mends(m)
				soon(n, "healthy", v.Request())
				n.SameTable(before)
			})
		}
	}
}

// onMappings are the volumes of TestMapping.
var onMappings = map[string]func(n *harness.Node) (*harness.Volume, *harness.Mapping){
	"ext4": func(n *harness.Node) (*harness.Volume, *harness.Mapping) {
		return n.NewVolumeOnMapping("ext4", "mapped")
	},
	"ext4 on LUKS": func(n *harness.Node) (*harness.Volume, *harness.Mapping) {
		return n.NewVolumeOnLUKS("ext4", "encrypted")
	},
	"block": func(n *harness.Node) (*harness.Volume, *harness.Mapping) {
		return n.NewVolumeOnMapping("block", "mapped")
	},
}

// TestMappingFailsWrites has a disk refuse what is written while reads succeed.
func TestMappingFailsWrites(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	next := newNeighbour(n)
	v, m := n.NewVolumeOnMapping("ext4", "refusing")
	n.Expect("healthy", v.Request())
	m.Fail("error_writes")
	writeFiles(t, v, "refused")
	syncVolume(t, v)
	// The filesystem gives up its journal by then, and says so at the next write.
	writeFiles(t, v, "again")
	soon(n, "abnormal", v.Request())
	next.untouched()
}

// TestMappingDropsWrites is TestDiskDropsWrites with a real device that does so.
func TestMappingDropsWrites(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-write=never").Start()
	next := newNeighbour(n)
	v, m := n.NewVolumeOnMapping("ext4", "forgetful")
	harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT, "errors=continue"))
	n.Expect("healthy", v.Request())
	m.Fail("drop_writes")
	writeFiles(t, v, "lost")
	flush(t, v)
	m.Mend()
	n.Expect("healthy", v.Request())
	writeFiles(t, v, "more")
	syncVolume(t, v)
	n.Expect("abnormal", v.Request(), "FilesystemErrors")
	next.untouched()
}

// TestNBD kills the server of a network block device.
func TestNBD(t *testing.T) {
	for _, fs := range []string{"ext4", "block"} {
		t.Run(fs, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
			next := newNeighbour(n)
			v, d := n.NewVolumeOnNBD(fs, "remote")
			n.Expect("healthy", v.Request())
			before := n.Table()
			d.Kill()
			soon(n, "abnormal", v.Request())
			for range 2 {
				n.Expect("abnormal", v.Request(), "DeviceReadError", "nbd0: read the device", "EIO")
			}
			next.untouched()
			n.SameTable(before)
			if fs == "ext4" {
				raw, err := os.ReadFile(filepath.Join(v.MountPoint(), "a")) // the cache answers
				if err != nil || len(raw) == 0 {
					t.Errorf("got %q %v", raw, err)
				}
			}
		})
	}
}

// TestMultipath takes the paths to a disk away, one after the other, and gives them
// back.
func TestMultipath(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	next := newNeighbour(n)
	v, m := n.NewVolumeOnMultipath("ext4", "two ways")
	n.Expect("healthy", v.Request())
	before := n.Table()
	m.Offline(0)
	n.Expect("healthy", v.Request()) // multipathd tells of a path while another one works
	m.Offline(1)
	soon(n, "abnormal", v.Request())
	harness.Eventually(t, "all paths have failed", func() bool {
		return strings.Contains(n.Message(v.Request()), "all paths to")
	})
	n.Expect("abnormal", v.Request(), "PathsFailed", "all paths to")
	next.untouched()
	m.Online()
	soon(n, "healthy", v.Request())
	n.SameTable(before)
}
