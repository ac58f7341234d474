package node

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// tree makes files below a new directory: "path": text, or "path": "-> target".
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, isLink := strings.CutPrefix(text, "-> "); isLink {
			err = os.Symlink(target, p)
		} else {
			err = os.WriteFile(p, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// As recorded on machines with such devices.
var recordedSysfs = map[string]string{
	"dev/block/8:16":                                      "-> ../../devices/pci0/host2/target2/block/sdb",
	"dev/block/8:17":                                      "-> ../../devices/pci0/host2/target2/block/sdb/sdb1",
	"devices/pci0/host2/target2/wwid":                     "naa.600508b1001c\n",
	"devices/pci0/host2/target2/serial":                   "6RT0\n",
	"devices/pci0/host2/target2/block/sdb/device":         "-> ../../../target2",
	"devices/pci0/host2/target2/block/sdb/ro":             "0\n",
	"devices/pci0/host2/target2/block/sdb/size":           "2097152\n",
	"devices/pci0/host2/target2/block/sdb/diskseq":        "9\n",
	"devices/pci0/host2/target2/block/sdb/sdb1/partition": "1\n",
	"devices/pci0/host2/target2/block/sdb/sdb1/size":      "2048\n",
	"devices/pci0/host2/target2/block/sdb/sdb1/ro":        "1\n",

	"dev/block/8:48":                              "-> ../../devices/pci0/host2/target3/block/sdd",
	"devices/pci0/host2/target3/wwid":             "naa.5056432d49443032\n",
	"devices/pci0/host2/target3/block/sdd/device": "-> ../../../target3",
	"devices/pci0/host2/target3/block/sdd/size":   "8\n",

	"dev/block/8:64":                                  "-> ../../devices/platform/host3/target4/block/sde",
	"devices/platform/host3/target4/wwid":             "naa.60000000000000000e00000000020001\n",
	"devices/platform/host3/target4/serial":           "beaf21\n",
	"devices/platform/host3/target4/block/sde/device": "-> ../../../target4",
	"devices/platform/host3/target4/block/sde/size":   "8\n",

	"dev/block/252:0":                                     "-> ../../devices/virtual/block/dm-0",
	"devices/virtual/block/dm-0/dm/uuid":                  "CRYPT-LUKS2-0011-pvc\n",
	"devices/virtual/block/dm-0/size":                     "1024\n",
	"devices/virtual/block/dm-0/ro":                       "0\n",
	"devices/virtual/block/dm-0/diskseq":                  "12\n",
	"dev/block/252:1":                                     "-> ../../devices/virtual/block/dm-1",
	"devices/virtual/block/dm-1/dm/uuid":                  "mpath-3600508b1001c\n",
	"devices/virtual/block/dm-1/size":                     "2097152\n",
	"devices/virtual/block/dm-1/slaves/sdb":               "-> ../../../../pci0/host2/target2/block/sdb",
	"devices/pci0/host2/target2/block/sdb/holders/dm-1/x": "",

	"dev/block/7:3":                                 "-> ../../devices/virtual/block/loop3",
	"devices/virtual/block/loop3/size":              "131072\n",
	"devices/virtual/block/loop3/diskseq":           "77\n",
	"devices/virtual/block/loop3/loop/backing_file": "/var/img (deleted)\n",

	"dev/block/43:0":                     "-> ../../devices/virtual/block/nbd0",
	"devices/virtual/block/nbd0/size":    "8\n",
	"devices/virtual/block/nbd0/diskseq": "5\n",
	"devices/virtual/block/nbd0/backend": "0001-0009-rook-ceph-0000000000000001-aa\n",
	"dev/block/43:32":                    "-> ../../devices/virtual/block/nbd1",
	"devices/virtual/block/nbd1/size":    "8\n",
	"devices/virtual/block/nbd1/diskseq": "6\n",
	"dev/block/43:64":                    "-> ../../devices/virtual/block/nbd2",
	"devices/virtual/block/nbd2/size":    "8\n",
	"devices/virtual/block/nbd2/diskseq": "7\n",
	"devices/virtual/block/nbd2/backend": "81adc51d-7d7d-4d7d-8d7d-0123456789ab\n",

	"dev/block/259:0":                        "-> ../../devices/pci0/nvme/nvme0/nvme0n1",
	"devices/pci0/nvme/nvme0/serial":         "S4EVNX0R   \n",
	"devices/pci0/nvme/nvme0/nvme0n1/device": "-> ../../nvme0",
	"devices/pci0/nvme/nvme0/nvme0n1/wwid":   "eui.0025385b\n",
	"devices/pci0/nvme/nvme0/nvme0n1/size":   "8\n",

	"dev/block/259:1":                        "-> ../../devices/pci0/nvme/nvme1/nvme1n1",
	"devices/pci0/nvme/nvme1/serial":         "vol0123456789abcdef0\n",
	"devices/pci0/nvme/nvme1/nvme1n1/device": "-> ../../nvme1",
	"devices/pci0/nvme/nvme1/nvme1n1/wwid":   "nvme.1d0f-766f6c30-416d617a-00000001\n",
	"devices/pci0/nvme/nvme1/nvme1n1/size":   "8\n",
	"dev/block/259:2":                        "-> ../../devices/pci0/nvme/nvme2/nvme2n3",
	"devices/pci0/nvme/nvme2/serial":         "nvme_card-pd\n",
	"devices/pci0/nvme/nvme2/nvme2n3/device": "-> ../../nvme2",
	"devices/pci0/nvme/nvme2/nvme2n3/wwid":   "nvme.1ae0-6e766d655f636172642d7064-6e766d655f636172642d7064-00000003\n",
	"devices/pci0/nvme/nvme2/nvme2n3/size":   "8\n",
	"devices/pci0/nvme/nvme2/nvme2n1/device": "-> ../../nvme2",
	"devices/pci0/nvme/nvme2/nvme2n1/wwid":   "nvme.1ae0-6e766d655f636172642d7064-6e766d655f636172642d7064-00000001\n",
	"devices/pci0/nvme/nvme2/nvme2n1/size":   "8\n",
	"dev/block/259:3":                        "-> ../../devices/pci0/nvme/nvme2/nvme2n1",

	"dev/block/254:0":                       "-> ../../devices/pci0/virtio1/block/vda",
	"devices/pci0/virtio1/block/vda/serial": "vol-0a1b\n",
	"devices/pci0/virtio1/block/vda/size":   "junk\n",

	"dev/block/8:32": "-> ../../devices/gone/sdc",
}

func TestBlockDevice(t *testing.T) {
	sysfs := Sysfs(tree(t, recordedSysfs))
	for name, want := range map[string]facts.BlockDevice{
		"SCSI disk": {Dev: facts.Dev{Major: 8, Minor: 16}, Name: "sdb", DiskSeq: 9, Identity: facts.Identity{WWID: "naa.600508b1001c", Size: 1 << 30}},
		"partition": {Dev: facts.Dev{Major: 8, Minor: 17}, Name: "sdb1", ReadOnly: true, DiskSeq: 9, Identity: facts.Identity{WWID: "naa.600508b1001c", Partition: "1", Size: 1 << 20}},
		"dm": {
			Dev: facts.Dev{Major: 252, Minor: 0}, Name: "dm-0", DiskSeq: 12, Identity: facts.Identity{DMUUID: "CRYPT-LUKS2-0011-pvc", Size: 512 << 10},
			Mapping: &facts.Mapping{UUID: "CRYPT-LUKS2-0011-pvc"},
		},
		"multipath, the same disk as one path": {
			Dev: facts.Dev{Major: 252, Minor: 1}, Name: "dm-1", Identity: facts.Identity{WWID: "naa.600508b1001c", Size: 1 << 30},
			Mapping: &facts.Mapping{UUID: "mpath-3600508b1001c"},
		},
		"loop": {
			Dev: facts.Dev{Major: 7, Minor: 3}, Name: "loop3", DiskSeq: 77, Identity: facts.Identity{Size: 64 << 20},
			BackingFileGone: true,
		},
		"nbd, one device for all images":    {Dev: facts.Dev{Major: 43, Minor: 0}, Name: "nbd0", Identity: facts.Identity{Serial: "0001-0009-rook-ceph-0000000000000001-aa", Size: 4096}},
		"nbd, of a client that names none":  {Dev: facts.Dev{Major: 43, Minor: 32}, Name: "nbd1", Identity: facts.Identity{Size: 4096}},
		"nbd, of a name made for this once": {Dev: facts.Dev{Major: 43, Minor: 64}, Name: "nbd2", Identity: facts.Identity{Size: 4096}},
		"NVMe":                              {Dev: facts.Dev{Major: 259, Minor: 0}, Name: "nvme0n1", Identity: facts.Identity{WWID: "eui.0025385b", Serial: "S4EVNX0R", Size: 4096}},
		"NVMe of EBS, a controller for each disk": {
			Dev: facts.Dev{Major: 259, Minor: 1}, Name: "nvme1n1",
			Identity: facts.Identity{WWID: "nvme.1d0f-766f6c30-416d617a-00000001", Serial: "vol0123456789abcdef0", Size: 4096},
		},
		"NVMe of GCE, a controller for all disks": {Dev: facts.Dev{Major: 259, Minor: 2}, Name: "nvme2n3", Identity: facts.Identity{Size: 4096}},
		"the first one at that controller":        {Dev: facts.Dev{Major: 259, Minor: 3}, Name: "nvme2n1", Identity: facts.Identity{Size: 4096}},
		"SCSI of Proxmox, a WWID for each LUN":    {Dev: facts.Dev{Major: 8, Minor: 48}, Name: "sdd", Identity: facts.Identity{Size: 4096}},
		"iSCSI of Longhorn, both by the target":   {Dev: facts.Dev{Major: 8, Minor: 64}, Name: "sde", Identity: facts.Identity{Size: 4096}},
		// Reading its serial would ask the device.
		"virtio":  {Dev: facts.Dev{Major: 254, Minor: 0}, Name: "vda"},
		"unknown": {Dev: facts.Dev{Major: 8, Minor: 99}, Missing: true},
		"removed": {Dev: facts.Dev{Major: 8, Minor: 32}, Missing: true},
	} {
		if got := sysfs.BlockDevice(want.Dev); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got  %+v\nwant %+v", name, got, want)
		}
	}
}

// Where sysfs itself is not to be seen, nothing follows for a device.
func TestNoSysfsProvesNothing(t *testing.T) {
	for _, dir := range []string{t.TempDir(), "/nonexistent", tree(t, map[string]string{"dev/block": "a file"})} {
		if d := Sysfs(dir).BlockDevice(facts.Dev{Major: 8, Minor: 16}); d.Missing || d.Name != "" {
			t.Errorf("%s: %+v", dir, d)
		}
	}
}

// What a device is and does is read anew each time.
func TestDeviceThatChanges(t *testing.T) {
	sysfs := Sysfs(tree(t, recordedSysfs))
	loop, nvme := facts.Dev{Major: 7, Minor: 3}, facts.Dev{Major: 259, Minor: 0}
	write := func(file, text string) {
		t.Helper()
		done(t, os.WriteFile(filepath.Join(string(sysfs), file), []byte(text+"\n"), 0o600))
	}
	for text, want := range map[string]bool{"/img": false, "/img (deleted)": true, "/other": false} {
		write("devices/virtual/block/loop3/loop/backing_file", text)
		if got := sysfs.BlockDevice(loop); got.BackingFileGone != want {
			t.Errorf("%q: %+v", text, got)
		}
	}
	write("devices/pci0/nvme/nvme0/nvme0n1/wwid", "another")
	if got := sysfs.BlockDevice(nvme); got.Identity.WWID != "another" {
		t.Errorf("another disk: %+v", got)
	}
	done(t, os.Remove(filepath.Join(string(sysfs), "dev/block", nvme.String())))
	if got := sysfs.BlockDevice(nvme); !got.Missing || got.Known() || got.Identity != (facts.Identity{}) {
		t.Errorf("gone: %+v", got)
	}
}

// A process that may open no more files learns nothing of a device, and believes
// nothing of it.
func TestDeviceWithoutADescriptorLeft(t *testing.T) {
	sysfs, dev := Sysfs(tree(t, recordedSysfs)), facts.Dev{Major: 259, Minor: 0}
	var before unix.Rlimit
	done(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	done(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	blind := sysfs.BlockDevice(dev)
	done(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	if blind.Known() || blind.Missing || blind.Identity != (facts.Identity{}) {
		t.Errorf("%+v", blind)
	}
	if got := sysfs.BlockDevice(dev); !got.Known() || got.Identity.WWID == "" {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestErrorsCountedBy(t *testing.T) {
	sysfs := Sysfs(tree(t, map[string]string{"fs/ext4/sdb/errors_count": "3\n"}))
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
		e := sysfs.FilesystemErrors(tc.fsType, tc.device)
		if (e == nil) != tc.none || e != nil && e.Count != tc.want {
			t.Errorf("%+v: %+v", tc, e)
		}
	}
}
