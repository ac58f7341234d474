package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func volData(handle string) []byte {
	return []byte(`{"driverName":"d","volumeHandle":"` + handle + `"}`)
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
	info, err := os.Stat(file)
	done(t, err)
	done(t, os.WriteFile(file, volData("h20"), 0o600))
	done(t, os.Chtimes(file, info.ModTime(), info.ModTime())) // the change time cannot be set
	expect("h20")
	done(t, os.WriteFile(file+".x", volData("h21"), 0o600))
	done(t, os.Rename(file+".x", file))
	expect("h21")
	for _, bytes := range []int64{5, 0} {
		done(t, os.Truncate(file, bytes))
		expect("")
	}
	done(t, os.Remove(file))
	expect("")
}

func TestParseVolData(t *testing.T) {
	n := Node{files: newCache[string, *facts.VolData]()}
	full := `{"attachmentID":"csi-1","driverName":"d","nodeName":"n","specVolID":"pvc-1","volumeHandle":"a/b^ c","volumeLifecycleMode":"Persistent"}`
	if got := n.volData("/f", []byte(full)); got == nil || *got != (facts.VolData{DriverName: "d", VolumeHandle: "a/b^ c", Lifecycle: "Persistent"}) {
		t.Errorf("%+v", got)
	}
	for _, bad := range []string{"", "{", "[]", `{"driverName":1}`, "\x00"} {
		if got := n.volData("/f", []byte(bad)); got != nil || n.files.lru.Len() > 0 {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}
