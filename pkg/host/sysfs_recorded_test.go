package host

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
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
	running := []DevicePath{{Name: "sdb", State: "running"}}
	for name, tc := range map[string]struct {
		tree string
		want BlockDevice
	}{
		"loop device, file deleted": {"loop-deleted", BlockDevice{
			Dev: Dev{Major: 7, Minor: 0}, Name: "loop0", DiskSeq: 22393, Identity: Identity{Size: 64 << 20},
			Loop: &Loop{BackingFile: "/var/lib/images/a b", Deleted: true},
		}},
		"SCSI disk": {"scsi", BlockDevice{
			Dev: Dev{Major: 8, Minor: 16}, Name: "sdb", DiskSeq: 9, Identity: Identity{WWID: wwid, Size: 1 << 30}, Paths: running,
		}},
		"SCSI partition": {"scsi", BlockDevice{
			Dev: Dev{Major: 8, Minor: 17}, Name: "sdb1", DiskSeq: 9, Identity: Identity{WWID: wwid, Size: 1 << 20, Partition: "1"}, Paths: running,
		}},
		"logical volume": {"lvm", BlockDevice{
			Dev: Dev{Major: 253, Minor: 0}, Name: "dm-0", DiskSeq: 12, Identity: Identity{DMUUID: lv, Size: 512 << 10},
			Mapping: &Mapping{Name: "vg-pvc", UUID: lv}, Paths: running,
		}},
		"LUKS on a logical volume": {"lvm", BlockDevice{
			Dev: Dev{Major: 253, Minor: 1}, Name: "dm-1", DiskSeq: 13, Identity: Identity{DMUUID: crypt, Size: 496 << 10},
			Mapping: &Mapping{Name: "luks-pvc", UUID: crypt}, Paths: running,
		}},
		"LUKS, disk gone": {"crypt-gone", BlockDevice{
			Dev: Dev{Major: 253, Minor: 0}, Name: "dm-0", DiskSeq: 12, Identity: Identity{DMUUID: crypt, Size: 1008 << 20},
			Mapping: &Mapping{Name: "luks-pvc", UUID: crypt, Orphaned: true},
			Paths:   []DevicePath{{Name: "sdb", State: PathGone, Failed: true}},
		}},
		"NVMe": {"nvme", BlockDevice{
			Dev: Dev{Major: 259, Minor: 0}, Name: "nvme0n1", DiskSeq: 2,
			Identity: Identity{Serial: serial, WWID: "eui.0025385b71b1234a", Size: 2 << 20},
			Paths:    []DevicePath{{Name: "nvme1", State: "live"}},
		}},
		"NVMe partition": {"nvme", BlockDevice{
			Dev: Dev{Major: 259, Minor: 1}, Name: "nvme0n1p1", DiskSeq: 2,
			Identity: Identity{Serial: serial, WWID: "eui.0025385b71b1234a", Size: 1 << 20, Partition: "1"},
			Paths:    []DevicePath{{Name: "nvme1", State: "live"}},
		}},
		"native NVMe multipath": {"nvme-multipath", BlockDevice{
			Dev: Dev{Major: 259, Minor: 1}, Name: "nvme0n1", DiskSeq: 30,
			Identity: Identity{Serial: "a2e89bbaa386e18e", WWID: "uuid.3b1d1c2e-6f4a-4b2e-9c0d-1a2b3c4d5e6f", Size: 1 << 30},
			Paths:    []DevicePath{{Name: "nvme0", State: "live"}, {Name: "nvme1", State: "connecting", Waiting: true}},
		}},
	} {
		if got := recorded(t, tc.tree, nil).BlockDevice(tc.want.Dev); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got  %+v\nwant %+v", name, got, tc.want)
		}
	}
}

func TestMappingsThatAreDead(t *testing.T) {
	const dm0, dm1 = "devices/virtual/block/dm-0", "devices/virtual/block/dm-1"
	logical, luks, mpath, part := Dev{Major: 253, Minor: 0}, Dev{Major: 253, Minor: 1}, Dev{Major: 253, Minor: 0}, Dev{Major: 253, Minor: 1}
	disk := func(host, session int, name string) string { return lun(host, session) + "/block/" + name }
	for name, tc := range map[string]struct {
		tree                string
		dev                 Dev
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
		got := stateOf(recorded(t, tc.tree, tc.changes), tc.dev)
		if got.Mapping == nil || got.Mapping.Suspended != tc.suspended || got.Mapping.Orphaned != tc.orphaned {
			t.Errorf("%s: %+v", name, got.Mapping)
		}
	}
}

// shown is how one of the tests below writes paths.
func shown(paths []DevicePath) string {
	var words []string
	for _, p := range paths {
		word := p.Name + " " + p.State
		if p.Failed {
			word += " failed"
		}
		if p.Waiting {
			word += " waiting"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func TestPaths(t *testing.T) {
	scsi, mpath, part, nvme := Dev{Major: 8, Minor: 17}, Dev{Major: 253, Minor: 0}, Dev{Major: 253, Minor: 1}, Dev{Major: 259, Minor: 1}
	const (
		controller = "devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme1"
		fabrics    = "devices/virtual/nvme-fabrics/ctl"
	)
	for name, tc := range map[string]struct {
		tree    string
		dev     Dev
		changes map[string]string
		want    string
	}{
		"offline":           {"scsi", scsi, map[string]string{lun(2, 1) + "/state": "offline"}, "sdb offline failed"},
		"transport-offline": {"scsi", scsi, map[string]string{lun(2, 1) + "/state": "transport-offline"}, "sdb transport-offline failed"},
		"cancel":            {"scsi", scsi, map[string]string{lun(2, 1) + "/state": "cancel"}, "sdb cancel failed"},
		"deleted":           {"scsi", scsi, map[string]string{lun(2, 1) + "/state": "deleted"}, "sdb deleted failed"},
		"blocked":           {"scsi", scsi, map[string]string{lun(2, 1) + "/state": "blocked"}, "sdb blocked waiting"},
		"created-blocked":   {"scsi", scsi, map[string]string{lun(2, 1) + "/state": "created-blocked"}, "sdb created-blocked waiting"},
		"quiesce":           {"scsi", scsi, map[string]string{lun(2, 1) + "/state": "quiesce"}, "sdb quiesce waiting"},
		"created":           {"scsi", scsi, map[string]string{lun(2, 1) + "/state": "created"}, "sdb created"},
		"a new word":        {"scsi", scsi, map[string]string{lun(2, 1) + "/state": "tired"}, "sdb tired"},
		"no state":          {"scsi", scsi, map[string]string{lun(2, 1) + "/state": ""}, ""},

		"multipath": {"multipath", mpath, nil, "sdb running, sdc running, sdd running, sde running"},
		"multipath, one failed": {
			"multipath", mpath,
			map[string]string{lun(4, 3) + "/state": "transport-offline"},
			"sdb running, sdc running, sdd transport-offline failed, sde running",
		},
		"multipath, all failed": {"multipath", mpath, map[string]string{
			lun(2, 1) + "/state": "offline", lun(3, 2) + "/state": "transport-offline",
			lun(4, 3) + "/state": "transport-offline", lun(5, 4) + "/state": "offline",
		}, "sdb offline failed, sdc transport-offline failed, sdd transport-offline failed, sde offline failed"},
		"multipath, one waited for": {
			"multipath", mpath,
			map[string]string{lun(2, 1) + "/state": "blocked"},
			"sdb blocked waiting, sdc running, sdd running, sde running",
		},
		"multipath, one gone": {
			"multipath", mpath,
			map[string]string{lun(3, 2): ""},
			"sdb running, sdc gone failed, sdd running, sde running",
		},
		"partition on multipath": {
			"multipath", part,
			map[string]string{lun(3, 2): ""},
			"sdb running, sdc gone failed, sdd running, sde running",
		},
		"striped over four": {"multipath", mpath, map[string]string{"devices/virtual/block/dm-0/dm/uuid": "LVM-x"}, ""},

		"NVMe resetting":  {"nvme", nvme, map[string]string{controller + "/state": "resetting"}, "nvme1 resetting waiting"},
		"NVMe new":        {"nvme", nvme, map[string]string{controller + "/state": "new"}, "nvme1 new waiting"},
		"NVMe dead":       {"nvme", nvme, map[string]string{controller + "/state": "dead"}, "nvme1 dead failed"},
		"NVMe deleting":   {"nvme", nvme, map[string]string{controller + "/state": "deleting"}, "nvme1 deleting failed"},
		"NVMe deleted":    {"nvme", nvme, map[string]string{controller + "/state": "deleting (no IO)"}, "nvme1 deleting (no IO) failed"},
		"NVMe, no state":  {"nvme", nvme, map[string]string{controller + "/state": ""}, ""},
		"native, one off": {"nvme-multipath", nvme, map[string]string{fabrics + "/nvme1": ""}, "nvme0 live"},
		"native, namespace taken from one": {
			"nvme-multipath", nvme,
			map[string]string{fabrics + "/nvme0/nvme0c0n1": ""},
			"nvme1 connecting waiting",
		},
		"native, none": {"nvme-multipath", nvme, map[string]string{fabrics: ""}, ""},
	} {
		if got := shown(stateOf(recorded(t, tc.tree, tc.changes), tc.dev).Paths); got != tc.want {
			t.Errorf("%s: got  %q\nwant %q", name, got, tc.want)
		}
	}
}

func stateOf(s Sysfs, dev Dev) BlockDevice {
	d, _ := s.state(dev)
	return d
}

// Both halves together are the whole, and the fresh one overrules what is kept.
func TestStateAndIdentity(t *testing.T) {
	sysfs, dev := recorded(t, "nvme", nil), Dev{Major: 259, Minor: 1}
	state, id := stateOf(sysfs, dev), sysfs.DeviceIdentity(dev)
	if state.Identity != (Identity{Size: 1 << 20}) || id.Size != 0 || id.Serial == "" {
		t.Errorf("state %+v, identity %+v", state.Identity, id)
	}
	state.Identify(id)
	if whole := sysfs.BlockDevice(dev); !reflect.DeepEqual(state, whole) {
		t.Errorf("got  %+v\nwant %+v", state, whole)
	}
	state.Identity.FilesystemUUID = "asked"
	state.Identify(Identity{WWID: "kept", Size: 1})
	if state.Identity != (Identity{WWID: "kept", Size: 1 << 20, FilesystemUUID: "asked"}) {
		t.Errorf("%+v", state.Identity)
	}
	for _, unknown := range []Dev{{}, {Major: 259, Minor: 9}} {
		if id := sysfs.DeviceIdentity(unknown); id != (Identity{}) {
			t.Errorf("%s: %+v", unknown, id)
		}
	}
}

// ext4 and sysfs write the slash in a device's name as an exclamation mark.
func TestExt4ErrorsByName(t *testing.T) {
	sysfs := Sysfs(tree(t, map[string]string{
		"fs/ext4/cciss!c0d0p1/errors_count":     "4294967295\n",
		"fs/ext4/cciss!c0d0p1/first_error_time": "1795235257\n",
		"fs/ext4/cciss!c0d0p1/last_error_time":  "0\n",
		"fs/ext4/dm-0/errors_count":             "0\n",
		"fs/ext4/dm-0/last_error_func":          "not read\n",
		"fs/ext4/features/lazy_itable_init":     "supported\n",
		"fs/ext4/nvme0n1p1/errors_count":        "2\n",
		"fs/ext4/nvme0n1p1/last_error_errcode":  "2\n",
		"fs/ext4/nvme0n1p1/last_error_func":     "ext4_find_entry\n",
	}))
	for name, want := range map[string]*FilesystemErrors{
		"cciss/c0d0p1": {Count: 4294967295, FirstTime: time.Unix(1795235257, 0)},
		"dm-0":         {},
		"nvme0n1p1":    {Count: 2, LastFunction: "ext4_find_entry", LastErrno: syscall.EIO},
		"features":     nil,
		"sdb":          nil,
		"":             nil,
	} {
		if got := sysfs.Ext4Errors(name); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", name, got, want)
		}
	}
}

func TestBtrfsErrorsOfSeveralDevices(t *testing.T) {
	sysfs := Sysfs(tree(t, map[string]string{
		"fs/btrfs/a/devinfo/1/error_stats": "write_errs 1\nread_errs 2\nflush_errs 3\ncorruption_errs 4\ngeneration_errs 5\n",
		"fs/btrfs/a/devinfo/1/missing":     "0\n",
		"fs/btrfs/a/devinfo/2/error_stats": "write_errs 10\nread_errs 0\nflush_errs 0\ncorruption_errs 0\ngeneration_errs 0\nothers 7\n",
		"fs/btrfs/a/devinfo/2/missing":     "1\n",
		"fs/btrfs/a/devinfo/3/error_stats": "invalid\n",
		"fs/btrfs/features/raid1c34":       "0\n",
	}))
	want := BtrfsErrors{Writes: 11, Reads: 2, Flushes: 3, Corruptions: 4, Generations: 5, Missing: 1}
	if got := sysfs.BtrfsErrors("a"); got == nil || *got != want || got.Count() != 25 {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, none := range []string{"b", "features", ""} {
		if got := sysfs.BtrfsErrors(none); got != nil {
			t.Errorf("%q: %+v", none, got)
		}
	}
}
