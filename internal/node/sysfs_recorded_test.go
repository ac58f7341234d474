package node

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// recorded lays out a tree of testdata/sysfs, see its README, with some of its
// files changed: "" takes one away with all below it, "/" leaves an empty
// directory.
func recorded(t *testing.T, name string, changes map[string]string) Sysfs {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata/sysfs", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	var empty []string
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		if file, value, isFile := strings.Cut(line, " = "); isFile {
			if unquoted, err := strconv.Unquote(value); err == nil {
				value = unquoted
			}
			files[file] = value + "\n"
		} else if link, target, isLink := strings.Cut(line, " -> "); isLink {
			files[link] = "-> " + target
		} else if dir, isDir := strings.CutSuffix(line, "/"); isDir {
			empty = append(empty, dir)
		} else if !strings.HasPrefix(line, "#") {
			t.Fatalf("%s: what is %q?", name, line)
		}
	}
	for file, value := range changes {
		before := len(files)
		maps.DeleteFunc(files, func(f, _ string) bool { return f == file || strings.HasPrefix(f, file+"/") })
		if len(files) == before {
			t.Fatalf("%s has no %s to change", name, file)
		}
		switch value {
		case "":
		case "/":
			empty = append(empty, file)
		default:
			files[file] = value + "\n"
		}
	}
	root := tree(t, files)
	for _, dir := range empty {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return Sysfs(root)
}

// lun is the directory of one of the disks in the recorded trees.
func lun(host, session int) string {
	h := strconv.Itoa(host)
	return "devices/platform/host" + h + "/session" + strconv.Itoa(session) + "/target" + h + ":0:0/" + h + ":0:0:1"
}

func TestRecordedDevices(t *testing.T) {
	const (
		lv     = "LVM-IFFqf0id2DX3IgGmu6izzJW1rBoWmsC61hwGobtrD60aCMh6zJwK3uiYUS6rbNoY"
		crypt  = "CRYPT-LUKS2-5b1f0a7c9d3e4f6a8b2c1d0e9f8a7b6c-luks-pvc"
		wwid   = "naa.6001405a1b2c3d4e5f60718293a4b5c6"
		serial = "S4EVNX0R123456"
	)
	for name, tc := range map[string]struct {
		tree string
		want facts.BlockDevice
	}{
		"loop device, file deleted": {"loop-deleted", facts.BlockDevice{
			Dev: facts.Dev{Major: 7, Minor: 0}, Name: "loop0", DiskSeq: 22393, Identity: facts.Identity{Size: 64 << 20},
			BackingFileGone: true,
		}},
		"SCSI disk": {"scsi", facts.BlockDevice{
			Dev: facts.Dev{Major: 8, Minor: 16}, Name: "sdb", DiskSeq: 9, Identity: facts.Identity{WWID: wwid, Size: 1 << 30},
		}},
		"SCSI partition": {"scsi", facts.BlockDevice{
			Dev: facts.Dev{Major: 8, Minor: 17}, Name: "sdb1", DiskSeq: 9, Identity: facts.Identity{WWID: wwid, Size: 1 << 20, Partition: "1"},
		}},
		"logical volume": {"lvm", facts.BlockDevice{
			Dev: facts.Dev{Major: 253, Minor: 0}, Name: "dm-0", DiskSeq: 12, Identity: facts.Identity{DMUUID: lv, Size: 512 << 10},
			Mapping: &facts.Mapping{Name: "vg-pvc", UUID: lv},
		}},
		"LUKS on a logical volume": {"lvm", facts.BlockDevice{
			Dev: facts.Dev{Major: 253, Minor: 1}, Name: "dm-1", DiskSeq: 13, Identity: facts.Identity{DMUUID: crypt, Size: 496 << 10},
			Mapping: &facts.Mapping{Name: "luks-pvc", UUID: crypt},
		}},
		"LUKS, disk gone": {"crypt-gone", facts.BlockDevice{
			Dev: facts.Dev{Major: 253, Minor: 0}, Name: "dm-0", DiskSeq: 12, Identity: facts.Identity{DMUUID: crypt, Size: 1008 << 20},
			Mapping:   &facts.Mapping{Name: "luks-pvc", UUID: crypt, Orphaned: true},
			DeadPaths: []string{"sdb gone"},
		}},
		"NVMe": {"nvme", facts.BlockDevice{
			Dev: facts.Dev{Major: 259, Minor: 0}, Name: "nvme0n1", DiskSeq: 2,
			Identity: facts.Identity{Serial: serial, WWID: "eui.0025385b71b1234a", Size: 2 << 20},
		}},
		"NVMe partition": {"nvme", facts.BlockDevice{
			Dev: facts.Dev{Major: 259, Minor: 1}, Name: "nvme0n1p1", DiskSeq: 2,
			Identity: facts.Identity{Serial: serial, WWID: "eui.0025385b71b1234a", Size: 1 << 20, Partition: "1"},
		}},
		"native NVMe multipath": {"nvme-multipath", facts.BlockDevice{
			Dev: facts.Dev{Major: 259, Minor: 1}, Name: "nvme0n1", DiskSeq: 30,
			Identity: facts.Identity{Serial: "a2e89bbaa386e18e", WWID: "uuid.3b1d1c2e-6f4a-4b2e-9c0d-1a2b3c4d5e6f", Size: 1 << 30},
		}},
	} {
		if got := recorded(t, tc.tree, nil).BlockDevice(tc.want.Dev); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got  %+v\nwant %+v", name, got, tc.want)
		}
	}
}

func TestMappingsThatAreDead(t *testing.T) {
	const dm0, dm1 = "devices/virtual/block/dm-0", "devices/virtual/block/dm-1"
	logical, luks, mpath, part := facts.Dev{Major: 253, Minor: 0}, facts.Dev{Major: 253, Minor: 1}, facts.Dev{Major: 253, Minor: 0}, facts.Dev{Major: 253, Minor: 1}
	disk := func(host, session int, name string) string { return lun(host, session) + "/block/" + name }
	for name, tc := range map[string]struct {
		tree                string
		dev                 facts.Dev
		changes             map[string]string
		suspended, orphaned bool
	}{
		"as it should be":               {tree: "lvm", dev: luks},
		"suspended":                     {tree: "lvm", dev: luks, changes: map[string]string{dm1 + "/dm/suspended": "1"}, suspended: true},
		"what it lies on is suspended":  {tree: "lvm", dev: luks, changes: map[string]string{dm0 + "/dm/suspended": "1"}, suspended: true},
		"what lies on it is suspended":  {tree: "lvm", dev: logical, changes: map[string]string{dm1 + "/dm/suspended": "1"}},
		"partition gone":                {tree: "lvm", dev: logical, changes: map[string]string{disk(2, 1, "sdb/sdb1"): ""}, orphaned: true},
		"disk gone, two layers below":   {tree: "lvm", dev: luks, changes: map[string]string{lun(2, 1): ""}, orphaned: true},
		"another disk in its place":     {tree: "lvm", dev: luks, changes: map[string]string{disk(2, 1, "sdb/sdb1/holders"): ""}, orphaned: true},
		"disk failed, and still there":  {tree: "lvm", dev: luks, changes: map[string]string{lun(2, 1) + "/state": "offline"}},
		"no device in the table":        {tree: "lvm", dev: logical, changes: map[string]string{dm0 + "/slaves": "/"}, orphaned: true},
		"made of nothing":               {tree: "lvm", dev: logical, changes: map[string]string{dm0 + "/slaves": "/", dm0 + "/dm/uuid": "mine"}},
		"kernel without such a link":    {tree: "lvm", dev: logical, changes: map[string]string{dm0 + "/slaves": ""}},
		"multipath":                     {tree: "multipath", dev: mpath},
		"multipath, a path gone":        {tree: "multipath", dev: part, changes: map[string]string{lun(3, 2): ""}},
		"multipath, all paths gone":     {tree: "multipath", dev: part, changes: map[string]string{"devices/platform": ""}, orphaned: true},
		"multipath, no path in a table": {tree: "multipath", dev: part, changes: map[string]string{dm0 + "/slaves": "/"}, orphaned: true},
	} {
		got := recorded(t, tc.tree, tc.changes).BlockDevice(tc.dev)
		if got.Mapping == nil || got.Mapping.Suspended != tc.suspended || got.Mapping.Orphaned != tc.orphaned {
			t.Errorf("%s: %+v", name, got.Mapping)
		}
	}
}

func TestDeadPaths(t *testing.T) {
	scsi, mpath, part := facts.Dev{Major: 8, Minor: 17}, facts.Dev{Major: 253, Minor: 0}, facts.Dev{Major: 253, Minor: 1}
	nvme, native := facts.Dev{Major: 259, Minor: 0}, facts.Dev{Major: 259, Minor: 1}
	const controller = "devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme1"
	allGone := map[string]string{lun(2, 1): "", lun(3, 2): "", lun(4, 3): "", lun(5, 4): ""}
	for name, tc := range map[string]struct {
		tree    string
		dev     facts.Dev
		changes map[string]string
		want    string
	}{
		"running":           {tree: "scsi", dev: scsi},
		"offline":           {tree: "scsi", dev: scsi, changes: map[string]string{lun(2, 1) + "/state": "offline"}, want: "sdb offline"},
		"transport-offline": {tree: "scsi", dev: scsi, changes: map[string]string{lun(2, 1) + "/state": "transport-offline"}, want: "sdb transport-offline"},
		"cancel":            {tree: "scsi", dev: scsi, changes: map[string]string{lun(2, 1) + "/state": "cancel"}, want: "sdb cancel"},
		"deleted":           {tree: "scsi", dev: scsi, changes: map[string]string{lun(2, 1) + "/state": "deleted"}, want: "sdb deleted"},
		"blocked":           {tree: "scsi", dev: scsi, changes: map[string]string{lun(2, 1) + "/state": "blocked"}},
		"a new word":        {tree: "scsi", dev: scsi, changes: map[string]string{lun(2, 1) + "/state": "tired"}},
		"no state":          {tree: "scsi", dev: scsi, changes: map[string]string{lun(2, 1) + "/state": ""}},

		"multipath":             {tree: "multipath", dev: mpath},
		"multipath, one failed": {tree: "multipath", dev: mpath, changes: map[string]string{lun(4, 3) + "/state": "transport-offline"}},
		"multipath, all failed": {tree: "multipath", dev: mpath, changes: map[string]string{
			lun(2, 1) + "/state": "offline", lun(3, 2) + "/state": "transport-offline",
			lun(4, 3) + "/state": "transport-offline", lun(5, 4): "",
		}, want: "sdb offline, sdc transport-offline, sdd transport-offline, sde gone"},
		"multipath, one waited for": {tree: "multipath", dev: mpath, changes: map[string]string{
			lun(2, 1) + "/state": "blocked", lun(3, 2) + "/state": "offline", lun(4, 3) + "/state": "offline", lun(5, 4): "",
		}},
		"multipath, all gone":    {tree: "multipath", dev: mpath, changes: allGone, want: "sdb gone, sdc gone, sdd gone, sde gone"},
		"partition on multipath": {tree: "multipath", dev: part, changes: allGone, want: "sdb gone, sdc gone, sdd gone, sde gone"},
		"striped over four":      {tree: "multipath", dev: mpath, changes: map[string]string{"devices/virtual/block/dm-0/dm/uuid": "LVM-x", lun(5, 4): ""}},

		"NVMe":           {tree: "nvme", dev: nvme},
		"NVMe resetting": {tree: "nvme", dev: nvme, changes: map[string]string{controller + "/state": "resetting"}},
		"NVMe dead":      {tree: "nvme", dev: nvme, changes: map[string]string{controller + "/state": "dead"}, want: "nvme0n1 dead"},
		"NVMe deleted": {
			tree: "nvme", dev: nvme, changes: map[string]string{controller + "/state": "deleting (no IO)"},
			want: "nvme0n1 deleting (no IO)",
		},
		"native NVMe multipath": {tree: "nvme-multipath", dev: native},
		"logical volume on SCSI": {
			tree: "lvm", dev: facts.Dev{Major: 253, Minor: 1}, changes: map[string]string{lun(2, 1) + "/state": "offline"},
			want: "sdb offline",
		},
	} {
		if got := strings.Join(recorded(t, tc.tree, tc.changes).BlockDevice(tc.dev).DeadPaths, ", "); got != tc.want {
			t.Errorf("%s: got  %q\nwant %q", name, got, tc.want)
		}
	}
}

// ext4 and sysfs write the slash in a device's name as an exclamation mark.
func TestExt4ErrorsByName(t *testing.T) {
	sysfs := Sysfs(tree(t, map[string]string{
		"fs/ext4/cciss!c0d0p1/errors_count":    "4294967295\n",
		"fs/ext4/cciss!c0d0p1/last_error_time": "1795235257\n",
		"fs/ext4/dm-0/errors_count":            "0\n",
		"fs/ext4/dm-0/last_error_func":         "not read\n",
		"fs/ext4/features/lazy_itable_init":    "supported\n",
		"fs/ext4/nvme0n1p1/errors_count":       "2\n",
		"fs/ext4/nvme0n1p1/last_error_time":    "0\n",
		"fs/ext4/nvme0n1p1/last_error_func":    "ext4_find_entry\n",
	}))
	for name, want := range map[string]*facts.FilesystemErrors{
		"cciss/c0d0p1": {Count: 4294967295, LastTime: time.Unix(1795235257, 0)},
		"dm-0":         {},
		"nvme0n1p1":    {Count: 2, LastFunction: "ext4_find_entry"},
		"features":     nil,
		"sdb":          nil,
		"":             nil,
	} {
		if got := sysfs.FilesystemErrors("ext4", name); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", name, got, want)
		}
	}
}
