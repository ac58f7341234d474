package node

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// disks are devices as sysfs shows them, by what keeps them from being kept.
var disks = map[string]struct {
	dev        facts.Dev
	dir        string
	attributes map[string]string
	kept       bool
}{
	"a plain disk": {
		dev: facts.Dev{Major: 253, Minor: 0}, dir: "devices/virtual/block/zram0",
		attributes: map[string]string{"wwid": "w1", "size": "8", "ro": "0", "diskseq": "5"},
		kept:       true,
	},
	"no sequence": {
		dev: facts.Dev{Major: 253, Minor: 0}, dir: "devices/virtual/block/zram0",
		attributes: map[string]string{"wwid": "w1", "size": "8", "ro": "0"},
	},
	"a SCSI disk": {
		dev: facts.Dev{Major: 8, Minor: 16}, dir: "devices/pci0/host2/target2/block/sdb",
		attributes: map[string]string{"wwid": "w1", "size": "8", "ro": "0", "diskseq": "5", "device/state": "running"},
	},
	"a SCSI disk whose path is not told": {
		dev: facts.Dev{Major: 8, Minor: 16}, dir: "devices/pci0/host2/target2/block/sdb",
		attributes: map[string]string{"wwid": "w1", "size": "8", "ro": "0", "diskseq": "5"},
	},
	"an NVMe disk": {
		dev: facts.Dev{Major: 259, Minor: 0}, dir: "devices/pci0/nvme/nvme0/nvme0n1",
		attributes: map[string]string{"wwid": "w1", "size": "8", "ro": "0", "diskseq": "5"},
	},
	"a mapping": {
		dev: facts.Dev{Major: 252, Minor: 0}, dir: "devices/virtual/block/dm-0",
		attributes: map[string]string{"wwid": "w1", "size": "8", "ro": "0", "diskseq": "5", "dm/uuid": "LVM-x"},
	},
	"a partition": {
		dev: facts.Dev{Major: 253, Minor: 1}, dir: "devices/virtual/block/zram0/zram0p1",
		attributes: map[string]string{"wwid": "w1", "size": "8", "ro": "0", "partition": "1"},
	},
	"a loop device": {
		dev: facts.Dev{Major: 7, Minor: 3}, dir: "devices/virtual/block/loop3",
		attributes: map[string]string{"wwid": "w1", "size": "8", "ro": "0", "diskseq": "5", "loop/backing_file": "/img"},
		kept:       true,
	},
}

// nodeOf has a sysfs of text with one device, whose files a test may rewrite.
func nodeOf(t *testing.T, dev facts.Dev, dir string, text map[string]string) (n *Node, write func(file, text string)) {
	t.Helper()
	files := map[string]string{"dev/block/" + dev.String(): "-> ../../" + dir, "block/" + filepath.Base(dir): "-> ../" + dir}
	for name, value := range text {
		files[dir+"/"+name] = value + "\n"
	}
	if _, isPart := text["partition"]; isPart {
		files[filepath.Dir(dir)+"/diskseq"] = "5\n"
		files[filepath.Dir(dir)+"/wwid"] = "w1\n"
	}
	root := tree(t, files)
	n = &Node{cfg: Config{Sysfs: Sysfs(root)}, devices: newCache[facts.Dev, facts.BlockDevice]()}
	return n, func(file, text string) {
		at := filepath.Join(root, dir, file)
		if _, isPart := files[dir+"/partition"]; isPart && file == "wwid" {
			at = filepath.Join(root, filepath.Dir(dir), file)
		}
		done(t, os.WriteFile(at, []byte(text+"\n"), 0o600))
	}
}

// What another disk is, is read anew, and so is one that the kernel does not
// tell from the next.
func TestIdentityOfAnotherDisk(t *testing.T) {
	for name, d := range disks {
		t.Run(name, func(t *testing.T) {
			n, write := nodeOf(t, d.dev, d.dir, maps.Clone(d.attributes))
			open := facts.OpenedDevice{Open: true, DiskSeq: 5, Size: 4096}
			if name == "no sequence" {
				open.DiskSeq = 0
			}
			wwid := func(want string, opened facts.OpenedDevice) {
				t.Helper()
				if got := n.BlockDevice(d.dev, opened); got.Identity.WWID != want {
					t.Errorf("WWID %q, want %q", got.Identity.WWID, want)
				}
			}
			wwid("w1", open)
			write("wwid", "w2")
			if d.kept {
				wwid("w1", open)
			} else {
				wwid("w2", open)
			}
			next := open
			next.DiskSeq++
			wwid("w2", next)
			write("wwid", "w3")
			wwid("w3", facts.OpenedDevice{}) // not open: sysfs alone tells
			if got := n.Identity(d.dev); got.WWID != "w3" {
				t.Errorf("read anew: %+v", got)
			}
		})
	}
}

// The open device is asked each time: its size and protection are never old.
func TestStateOfAKeptDevice(t *testing.T) {
	d := disks["a plain disk"]
	n, _ := nodeOf(t, d.dev, d.dir, d.attributes)
	for _, opened := range []facts.OpenedDevice{
		{Open: true, DiskSeq: 5, Size: 4096}, {Open: true, DiskSeq: 5, Size: 1 << 30, ReadOnly: true}, {Open: true, DiskSeq: 5, Size: 512},
	} {
		n.BlockDevice(d.dev, facts.OpenedDevice{Open: true, DiskSeq: 5})
		got := n.BlockDevice(d.dev, opened)
		want := facts.BlockDevice{Dev: d.dev, Name: "zram0", DiskSeq: 5, ReadOnly: opened.ReadOnly, Identity: facts.Identity{WWID: "w1", Size: int64(opened.Size)}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestBackingOfAKeptDevice(t *testing.T) {
	d := disks["a loop device"]
	n, write := nodeOf(t, d.dev, d.dir, d.attributes)
	open := facts.OpenedDevice{Open: true, DiskSeq: 5}
	for text, want := range map[string]bool{"/img": false, "/img (deleted)": true, "/other": false} {
		write("loop/backing_file", text)
		n.BlockDevice(d.dev, open)
		if got := n.BlockDevice(d.dev, open); got.BackingFileGone != want {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestDeviceThatIsGone(t *testing.T) {
	d := disks["a plain disk"]
	n, _ := nodeOf(t, d.dev, d.dir, d.attributes)
	n.BlockDevice(d.dev, facts.OpenedDevice{Open: true, DiskSeq: 5})
	done(t, os.Remove(filepath.Join(string(n.cfg.Sysfs), "dev/block", d.dev.String())))
	if got := n.BlockDevice(d.dev, facts.OpenedDevice{}); !got.Missing || got.Known() {
		t.Errorf("%+v", got)
	}
	if got := n.Identity(d.dev); got != (facts.Identity{}) {
		t.Errorf("%+v", got)
	}
}

// A process that may open no more files learns nothing of a device, and believes
// nothing of it.
func TestDeviceWithoutADescriptorLeft(t *testing.T) {
	d := disks["a plain disk"]
	n, _ := nodeOf(t, d.dev, d.dir, d.attributes)
	open := facts.OpenedDevice{Open: true, DiskSeq: 5, Size: 4096}
	var before unix.Rlimit
	done(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	done(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	blind := n.BlockDevice(d.dev, open)
	done(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	if blind.Known() || blind.Missing || blind.Identity != (facts.Identity{}) {
		t.Errorf("%+v", blind)
	}
	if got := n.BlockDevice(d.dev, open); !got.Known() || got.Identity.WWID != "w1" {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestErrorsCountedBy(t *testing.T) {
	n := &Node{devices: newCache[facts.Dev, facts.BlockDevice](), cfg: Config{Sysfs: Sysfs(tree(t, map[string]string{
		"fs/ext4/sdb/errors_count": "3\n",
	}))}}
	for _, tc := range []struct {
		fsType, device string
		want           uint64
		none           bool
	}{
		{fsType: "ext4", device: "sdb", want: 3},
		{fsType: "ext3", device: "sdb", want: 3}, // of ext4's driver, too
		{fsType: "ext2", device: "sdb", want: 3},
		{fsType: "xfs", device: "sdb", none: true},
		{fsType: "ext4", device: "sdc", none: true},
		{fsType: "ext4", none: true},
	} {
		e := n.FilesystemErrors(tc.fsType, tc.device)
		if (e == nil) != tc.none || e != nil && e.Count != tc.want {
			t.Errorf("%+v: %+v", tc, e)
		}
	}
}
