package ops

import (
	"errors"
	"os"
	"testing"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/mount"
)

// On NFS a mount of the dead one's superblock may be good: only its peers go with it.
func TestIsCopy(t *testing.T) {
	d := Dead{Superblock: mount.Dev{Minor: 44}}
	dead := mount.Mount{Dev: mount.Dev{Minor: 44}, FSType: "nfs4", Propagation: mount.Propagation{Shared: 7}}
	for name, tc := range map[string]struct {
		dead, e mount.Mount
		want    bool
	}{
		"a peer":                    {dead, mount.Mount{Dev: mount.Dev{Minor: 44}, FSType: "nfs4", Propagation: mount.Propagation{Shared: 7}}, true},
		"a slave":                   {dead, mount.Mount{Dev: mount.Dev{Minor: 44}, FSType: "nfs4", Propagation: mount.Propagation{Master: 7}}, true},
		"of another group":          {dead, mount.Mount{Dev: mount.Dev{Minor: 44}, FSType: "nfs4", Propagation: mount.Propagation{Shared: 8, Master: 9}}, false},
		"private":                   {dead, mount.Mount{Dev: mount.Dev{Minor: 44}, FSType: "nfs4"}, false},
		"both private":              {mount.Mount{Dev: mount.Dev{Minor: 44}, FSType: "nfs4"}, mount.Mount{Dev: mount.Dev{Minor: 44}, FSType: "nfs4"}, false},
		"another superblock":        {dead, mount.Mount{Dev: mount.Dev{Minor: 45}, FSType: "nfs4", Propagation: mount.Propagation{Shared: 7}}, false},
		"no NFS, of its superblock": {mount.Mount{}, mount.Mount{Dev: mount.Dev{Minor: 44}, FSType: "fuse.x"}, true},
		"no NFS, of another":        {mount.Mount{}, mount.Mount{Dev: mount.Dev{Minor: 45}, FSType: "fuse.x"}, false},
	} {
		if got := d.isCopy(tc.dead, tc.e); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// What answers is never taken for stale.
func TestCheckStaleTwice(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := checkStaleTwice(int(f.Fd())); !errors.Is(err, worker.ErrRefused) {
		t.Errorf("got %v", err)
	}
}
