package state

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const driver = "csi.example.com"

func openDir(t *testing.T) (*Dir, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, path
}

func sample(volumeID string) healer.Record {
	return healer.Record{
		Version: healer.RecordVersion, Driver: driver, VolumeID: volumeID, BootID: "boot",
		FSType: "ext4", Source: "/dev/sdb", DiskSeq: 7,
		Identity: facts.Identity{FilesystemUUID: "u", Serial: "s", WWID: "w", DMUUID: "d", Size: 1 << 40},
		MountPoints: []healer.MountPointRecord{{
			Role: healer.RoleTarget, Path: "/k/a b\n/mount", Root: "/sub", Attr: facts.AttrReadOnly | facts.AttrNoAtime,
			Propagation: facts.Propagation{Shared: 3, Master: 4}, ReadOnlySuper: true,
			Dev: facts.Dev{Major: 8, Minor: 16}, MountID: 1 << 60,
		}},
		LastSeen: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func mustSave(t *testing.T, r *Records, record healer.Record) {
	t.Helper()
	if err := r.Save(record); err != nil {
		t.Fatal(err)
	}
}

// expect loads a record; nil means that none is to be found.
func expect(t *testing.T, r *Records, volumeID string, want *healer.Record) {
	t.Helper()
	got, err := r.Load(driver, volumeID)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("volume %.40q: loaded %+v, %v; want %+v", volumeID, got, err, want)
	}
}

func TestRecordsRoundTrip(t *testing.T) {
	d, path := openDir(t)
	ids := []string{
		"pvc-1", "a/b/../../c", "/", "..", "nul\x00byte", "caf\u00e9^ \t\n", strings.Repeat("x", 1024), "PVC-1", driver + "\x00pvc-1",
	}
	for _, id := range ids {
		expect(t, d.Records(), id, nil)
		mustSave(t, d.Records(), sample(id))
	}
	for _, id := range ids {
		want := sample(id)
		expect(t, d.Records(), id, &want)
	}
	name := regexp.MustCompile(`^[0-9a-f]{64}\.json$`)
	files, err := os.ReadDir(filepath.Join(path, recordsDir))
	if err != nil || len(files) != len(ids) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		if !name.MatchString(f.Name()) {
			t.Errorf("file name %q", f.Name())
		}
	}
}

// What names a slot is not compared with, also in a record of a build that recorded it.
func TestRecordedIdentityIsOfADisk(t *testing.T) {
	d, _ := openDir(t)
	record := sample("v")
	record.Identity.WWID = "nvme.1ae0-6e766d655f636172642d7064-6e766d655f636172642d7064-00000003"
	mustSave(t, d.Records(), record)
	got, err := d.Records().Load(driver, "v")
	if err != nil || got.Identity != (facts.Identity{FilesystemUUID: "u", DMUUID: "d", Size: 1 << 40}) {
		t.Errorf("%+v, %v", got, err)
	}
	record.Identity.DMUUID = "mpath-36001405a"
	mustSave(t, d.Records(), record)
	if got, err = d.Records().Load(driver, "v"); err != nil || got.Identity != (facts.Identity{FilesystemUUID: "u", WWID: "naa.6001405a", Size: 1 << 40}) {
		t.Errorf("multipath: %+v, %v", got, err)
	}
}

func TestRecordsAreKeyedByDriverToo(t *testing.T) {
	d, _ := openDir(t)
	mustSave(t, d.Records(), sample("v"))
	if got, err := d.Records().Load("other.example.com", "v"); got != nil || err != nil {
		t.Errorf("another driver's volume of the same name: %+v, %v", got, err)
	}
}

func TestModes(t *testing.T) {
	d, path := openDir(t)
	mustSave(t, d.Records(), sample("v"))
	if err := d.Audit().Before(healer.AuditEntry{Step: "rebind"}); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o", p, info.Mode().Perm())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What another build adds to a record takes none of it from this one.
func TestRecordWithAFieldOfAnotherBuild(t *testing.T) {
	want := sample("v")
	raw, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	d, _ := openDir(t)
	r := d.Records()
	raw = bytes.Replace(raw, []byte(`"version":2`), []byte(`"version":2,"more":1`), 1)
	if err := os.WriteFile(r.path(driver, "v"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, r, "v", &want)
}

func TestUnusableRecordsCountAsNone(t *testing.T) {
	whole, err := json.Marshal(sample("v"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := json.Marshal(sample("w"))
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{
		"empty":              nil,
		"torn":               whole[:len(whole)/2],
		"zeros":              make([]byte, 4096),
		"no JSON":            []byte("hello"),
		"another's":          other,
		"older version":      bytes.Replace(whole, []byte(`"version":2`), []byte(`"version":0`), 1),
		"newer version":      bytes.Replace(whole, []byte(`"version":2`), []byte(`"version":3`), 1),
		"no version":         bytes.Replace(whole, []byte(`"version":2,`), nil, 1),
		"something after it": append(bytes.Clone(whole), "{}"...),
		"a field's type":     bytes.Replace(whole, []byte(`"diskSeq":7`), []byte(`"diskSeq":"7"`), 1),
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := openDir(t)
			r := d.Records()
			if err := os.WriteFile(r.path(driver, "v"), raw, 0o600); err != nil {
				t.Fatal(err)
			}
			expect(t, r, "v", nil)
			// The next healthy check writes it anew.
			want := sample("v")
			mustSave(t, r, want)
			expect(t, r, "v", &want)
		})
	}
}

func TestOversizeRecordIsNotRead(t *testing.T) {
	d, _ := openDir(t)
	r := d.Records()
	if err := os.WriteFile(r.path(driver, "v"), bytes.Repeat([]byte(" "), recordLimit+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Load(driver, "v"); got != nil || err != nil {
		t.Errorf("loaded %+v, %v", got, err)
	}
	want := sample("v")
	mustSave(t, r, want)
	expect(t, r, "v", &want)
}

// What could not be read again must not take the place of what can.
func TestOversizeRecordIsNotSaved(t *testing.T) {
	dir, _ := openDir(t)
	r := dir.Records()
	small, large := sample("v"), sample("v")
	mustSave(t, r, small)
	for id := range uint64(1024) {
		large.Previous = append(large.Previous, healer.PreviousSuperblock{Mounts: []healer.PreviousMount{{ID: id, Path: strings.Repeat("/a", 512)}}})
	}
	if err := r.Save(large); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("saved: %v", err)
	}
	expect(t, r, "v", &small)
}

// A crash between the write and the rename leaves the new file beside the old.
func TestCrashBeforeRename(t *testing.T) {
	d, path := openDir(t)
	r := d.Records()
	old := sample("v")
	mustSave(t, r, old)
	if err := os.WriteFile(r.path(driver, "v")+".new", []byte("{half a rec"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, r, "v", &old)
	next := sample("v")
	next.BootID = "next"
	mustSave(t, r, next)
	expect(t, r, "v", &next)
	if files, _ := os.ReadDir(filepath.Join(path, recordsDir)); len(files) != 1 {
		t.Errorf("%d files are left", len(files))
	}
}

// A failed save keeps what was there.
func TestFailedSaveKeepsTheOld(t *testing.T) {
	d, _ := openDir(t)
	r := d.Records()
	old := sample("v")
	mustSave(t, r, old)
	if err := os.Mkdir(r.path(driver, "v")+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Save(sample("v")); err == nil {
		t.Error("no error")
	}
	expect(t, r, "v", &old)
}

// The record type has no mount point for a secret: no map, and no field named like one.
func TestRecordHoldsNoSecret(t *testing.T) {
	bad := regexp.MustCompile(`(?i)secret|password|token|credential|context|options|key`)
	var look func(path string, typ reflect.Type)
	look = func(path string, typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Map, reflect.Interface:
			t.Errorf("%s is a %s", path, typ.Kind())
		case reflect.Slice, reflect.Pointer, reflect.Array:
			look(path, typ.Elem())
		case reflect.Struct:
			if typ == reflect.TypeFor[time.Time]() {
				return
			}
			for i := range typ.NumField() {
				f := typ.Field(i)
				if bad.MatchString(f.Name) || bad.MatchString(f.Tag.Get("json")) {
					t.Errorf("%s.%s is named like a secret", path, f.Name)
				}
				look(path+"."+f.Name, f.Type)
			}
		}
	}
	look("Record", reflect.TypeFor[healer.Record]())
	look("AuditEntry", reflect.TypeFor[healer.AuditEntry]())
}
