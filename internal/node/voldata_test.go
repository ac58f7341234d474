package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts"
)

func stamp(n uint64) ops.FileStamp { return ops.FileStamp{Inode: n, Size: 1, Seconds: 1} }

func volData(handle string) []byte {
	return []byte(`{"driverName":"d","volumeHandle":"` + handle + `"}`)
}

// What a worker brings of a file, one look after the other.
func TestLearnVolData(t *testing.T) {
	type look struct {
		raw   []byte
		stamp ops.FileStamp // zero: the file is missing, or too new to be known by its stamp
		want  string        // the handle, empty for nothing
		knows bool          // at the next look
	}
	torn := []byte(`{"driver`)
	for name, looks := range map[string][]look{
		"missing": {{want: ""}, {want: ""}},
		"unchanged": {
			{raw: volData("a"), stamp: stamp(1), want: "a", knows: true},
			{stamp: stamp(1), want: "a", knows: true},
			{stamp: stamp(1), want: "a", knows: true},
		},
		"changed": {
			{raw: volData("a"), stamp: stamp(1), want: "a", knows: true},
			{raw: volData("b"), stamp: stamp(2), want: "b", knows: true},
			{stamp: stamp(2), want: "b", knows: true},
		},
		"changed, with the old stamp": {
			{raw: volData("a"), stamp: stamp(1), want: "a", knows: true},
			{raw: volData("b"), stamp: stamp(1), want: "b", knows: true},
		},
		"removed": {{raw: volData("a"), stamp: stamp(1), want: "a", knows: true}, {want: ""}},
		"written just now": {
			{raw: volData("a"), want: "a"},
			{raw: volData("b"), want: "b"},
			{raw: volData("b"), stamp: stamp(2), want: "b", knows: true},
		},
		"touched just now": {{raw: volData("a"), stamp: stamp(1), want: "a", knows: true}, {raw: volData("b"), want: "b"}},
		"torn":             {{raw: torn, stamp: stamp(1)}, {raw: volData("a"), stamp: stamp(2), want: "a", knows: true}},
		"torn later":       {{raw: volData("a"), stamp: stamp(1), want: "a", knows: true}, {raw: torn, stamp: stamp(2)}},
		// An empty file crosses the process boundary as no content.
		"empty":           {{stamp: stamp(1)}},
		"emptied":         {{raw: volData("a"), stamp: stamp(1), want: "a", knows: true}, {stamp: stamp(2)}},
		"another's stamp": {{raw: volData("a"), stamp: stamp(1), want: "a", knows: true}, {stamp: stamp(3)}},
	} {
		n := Node{files: newCache[string, volDataFile]()}
		for i, l := range looks {
			before, _ := n.files.get("/f")
			got := n.volData("/f", before, l.raw, l.stamp)
			handle := ""
			if got != nil {
				handle = got.VolumeHandle
			}
			if known, _ := n.files.get("/f"); handle != l.want || (known.stamp != ops.FileStamp{}) != l.knows {
				t.Errorf("%s, look %d: %q, known as %+v", name, i+1, handle, known)
			}
		}
		if _, known := n.files.get("/other"); known {
			t.Errorf("%s: another file is known", name)
		}
	}
}

// Through a worker: what the file says is what the look says, however often it
// is rewritten, and however old it is. A file that is torn is no evidence of anything, and
// no reason to answer nothing at all.
func TestVolDataIsNeverOld(t *testing.T) {
	n, root := newNode(t)
	dir := filepath.Join(root, "pods/uid/volumes/kubernetes.io~csi/pv")
	mountPoint, file := dir+"/mount", dir+"/vol_data.json"
	done(t, os.MkdirAll(mountPoint, 0o700))
	expect := func(want string) {
		t.Helper()
		s, err := n.Inspect(context.Background(), InspectQuery{Paths: []PathQuery{{Path: mountPoint, VolData: file}}})
		done(t, err)
		got := ""
		if d := s.Paths[mountPoint].VolData; d != nil {
			got = d.VolumeHandle
		}
		if got != want || s.Paths[mountPoint].Kind != facts.KindDirectory {
			t.Errorf("handle %q, want %q: %+v", got, want, s.Paths[mountPoint])
		}
	}
	expect("")
	for i := range 20 { // within one tick of the filesystem's clock, all of one size
		handle := fmt.Sprintf("h%02d", i)
		done(t, os.WriteFile(file, volData(handle), 0o600))
		expect(handle)
		expect(handle)
	}
	age(t, file)
	expect("h19")
	expect("h19")
	if known, _ := n.files.get(file); known.data == nil {
		t.Error("an old file is read each time")
	}
	info, err := os.Stat(file)
	done(t, err)
	done(t, os.WriteFile(file, volData("h20"), 0o600))
	done(t, os.Chtimes(file, info.ModTime(), info.ModTime())) // the change time cannot be set
	expect("h20")
	done(t, os.WriteFile(file+".x", volData("h21"), 0o600))
	done(t, os.Rename(file+".x", file))
	expect("h21")
	age(t, file)
	expect("h21")
	for _, bytes := range []int64{5, 0} {
		done(t, os.Truncate(file, bytes))
		expect("")
	}
	done(t, os.Remove(file))
	expect("")
}

// age waits until a file is old enough for its change time to prove something.
func age(t *testing.T, file string) {
	t.Helper()
	info, err := os.Stat(file)
	done(t, err)
	eventually(t, "a file grows old", func() bool { return time.Since(info.ModTime()) > 1100*time.Millisecond })
}

func TestParseVolData(t *testing.T) {
	n := Node{files: newCache[string, volDataFile]()}
	full := `{"attachmentID":"csi-1","driverName":"d","nodeName":"n","specVolID":"pvc-1","volumeHandle":"a/b^ c","volumeLifecycleMode":"Persistent"}`
	if got := n.volData("/f", volDataFile{}, []byte(full), stamp(1)); got == nil || *got != (facts.VolData{DriverName: "d", VolumeHandle: "a/b^ c", Lifecycle: "Persistent"}) {
		t.Errorf("%+v", got)
	}
	for _, bad := range []string{"", "{", "[]", `{"driverName":1}`, "\x00"} {
		if got := n.volData("/f", volDataFile{}, []byte(bad), stamp(1)); got != nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}
