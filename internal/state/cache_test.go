package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// loaded has a record that was saved and read once.
func loaded(t *testing.T) (*Records, healer.Record) {
	t.Helper()
	d, _ := openDir(t)
	r, record := d.Records(), sample("v")
	mustSave(t, r, record)
	expect(t, r, "v", &record)
	return r, record
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestUnchangedRecordIsReadOnce(t *testing.T) {
	r, record := loaded(t)
	first, _ := r.Load(driver, "v")
	again, _ := r.Load(driver, "v")
	if first == nil || first != again {
		t.Errorf("%p, then %p", first, again)
	}
	expect(t, r, "v", &record)
	expect(t, r, "w", nil)
}

// What another hand did to the file is seen at the next Load.
func TestChangedRecordIsReadAnew(t *testing.T) {
	other := sample("v")
	other.BootID = "next"
	for name, tc := range map[string]struct {
		change func(t *testing.T, r *Records, path string)
		want   *healer.Record
	}{
		"saved":            {func(t *testing.T, r *Records, _ string) { mustSave(t, r, other) }, &other},
		"saved by another": {func(t *testing.T, r *Records, _ string) { mustSave(t, &Records{dir: r.dir}, other) }, &other},
		"removed":          {func(t *testing.T, _ *Records, path string) { mustDo(t, os.Remove(path)) }, nil},
		"truncated":        {func(t *testing.T, _ *Records, path string) { mustDo(t, os.Truncate(path, 10)) }, nil},
		"overwritten": {func(t *testing.T, _ *Records, path string) {
			raw, err := os.ReadFile(path)
			mustDo(t, err)
			mustDo(t, os.WriteFile(path, make([]byte, len(raw)), 0o600))
		}, nil},
		"replaced by garbage of the same size and time": {func(t *testing.T, _ *Records, path string) {
			file, err := os.Stat(path)
			mustDo(t, err)
			mustDo(t, os.WriteFile(path+".x", make([]byte, file.Size()), 0o600))
			mustDo(t, os.Chtimes(path+".x", file.ModTime(), file.ModTime()))
			mustDo(t, os.Rename(path+".x", path))
		}, nil},
		"made a directory": {func(t *testing.T, _ *Records, path string) {
			mustDo(t, os.Remove(path))
			mustDo(t, os.Mkdir(path, 0o700))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := loaded(t)
			tc.change(t, r, r.path(driver, "v"))
			got, err := r.Load(driver, "v")
			if (got == nil) != (tc.want == nil) || got != nil && got.BootID != tc.want.BootID {
				t.Errorf("loaded %+v, %v", got, err)
			}
		})
	}
}

func TestRestoredRecord(t *testing.T) {
	r, first := loaded(t)
	path := r.path(driver, "v")
	mustDo(t, os.Rename(path, path+".kept"))
	expect(t, r, "v", nil)
	second := sample("v")
	second.BootID = "next"
	mustSave(t, r, second)
	expect(t, r, "v", &second)
	mustDo(t, os.Rename(path+".kept", path))
	expect(t, r, "v", &first)
	old := time.Now().Add(-time.Hour)
	mustDo(t, os.Chtimes(path, old, old)) // as cp --preserve does
	expect(t, r, "v", &first)
}

// Files of the same size, one right after the other: the filesystem may use an
// inode again, and its clock has ticks.
func TestRecordsSavedInARow(t *testing.T) {
	d, _ := openDir(t)
	r, record := d.Records(), sample("v")
	for i := range 200 {
		record.BootID = fmt.Sprintf("boot-%03d", i)
		mustSave(t, r, record)
		if got, err := r.Load(driver, "v"); err != nil || got == nil || got.BootID != record.BootID {
			t.Fatalf("saved %s, loaded %+v, %v", record.BootID, got, err)
		}
		if i%3 == 0 { // and twice without a Load
			mustSave(t, r, record)
		}
	}
}

func TestCacheIsBounded(t *testing.T) {
	d, _ := openDir(t)
	r := d.Records()
	raw, err := json.Marshal(sample("v"))
	mustDo(t, err)
	for i := range maxCached + 10 {
		record := sample(fmt.Sprint(i))
		mustDo(t, os.WriteFile(r.path(driver, record.VolumeID), bytes.Replace(raw, []byte(`"volumeID":"v"`), fmt.Appendf(nil, `"volumeID":"%d"`, i), 1), 0o600))
		expect(t, r, record.VolumeID, &record)
	}
	if n := r.cache.Len(); n != maxCached {
		t.Errorf("%d are kept", n)
	}
}
