package workerops

import (
	"errors"
	"os"
	"testing"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// On NFS a mount of the dead one's superblock may be good: only its peers go with it.
func TestCopyOf(t *testing.T) {
	number := Number{Minor: 44}
	dead := mountinfo.Entry{Dev: "0:44", FSType: "nfs4", Optional: []string{"shared:7"}}
	for name, tc := range map[string]struct {
		dead, e mountinfo.Entry
		want    bool
	}{
		"a peer":                    {dead, mountinfo.Entry{Dev: "0:44", FSType: "nfs4", Optional: []string{"shared:7"}}, true},
		"a slave":                   {dead, mountinfo.Entry{Dev: "0:44", FSType: "nfs4", Optional: []string{"master:7"}}, true},
		"of another group":          {dead, mountinfo.Entry{Dev: "0:44", FSType: "nfs4", Optional: []string{"shared:8", "master:9"}}, false},
		"private":                   {dead, mountinfo.Entry{Dev: "0:44", FSType: "nfs4"}, false},
		"both private":              {mountinfo.Entry{Dev: "0:44", FSType: "nfs4"}, mountinfo.Entry{Dev: "0:44", FSType: "nfs4"}, false},
		"another superblock":        {dead, mountinfo.Entry{Dev: "0:45", FSType: "nfs4", Optional: []string{"shared:7"}}, false},
		"no NFS, of its superblock": {mountinfo.Entry{}, mountinfo.Entry{Dev: "0:44", FSType: "fuse.x"}, true},
		"no NFS, of another":        {mountinfo.Entry{}, mountinfo.Entry{Dev: "0:45", FSType: "fuse.x"}, false},
		"odd":                       {dead, mountinfo.Entry{Dev: "odd", FSType: "nfs4", Optional: []string{"shared:7"}}, false},
	} {
		if got := copyOf(tc.dead, number)(tc.e); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// What answers is never taken for stale.
func TestStaleTwice(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := staleTwice(int(f.Fd())); !errors.Is(err, worker.ErrRefused) {
		t.Errorf("got %v", err)
	}
}
