package ops

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// On NFS a mount of the dead one's superblock may be good: only its peers go with it.
func TestIsCopy(t *testing.T) {
	d := Dead{Mount: facts.Mount{Dev: facts.Dev{Minor: 44}}}
	dead := facts.Mount{Dev: facts.Dev{Minor: 44}, FSType: "nfs4", Propagation: facts.Propagation{Shared: 7}}
	for name, tc := range map[string]struct {
		dead, e facts.Mount
		want    bool
	}{
		"a peer":                    {dead, facts.Mount{Dev: facts.Dev{Minor: 44}, FSType: "nfs4", Propagation: facts.Propagation{Shared: 7}}, true},
		"a slave":                   {dead, facts.Mount{Dev: facts.Dev{Minor: 44}, FSType: "nfs4", Propagation: facts.Propagation{Master: 7}}, true},
		"of another group":          {dead, facts.Mount{Dev: facts.Dev{Minor: 44}, FSType: "nfs4", Propagation: facts.Propagation{Shared: 8, Master: 9}}, false},
		"private":                   {dead, facts.Mount{Dev: facts.Dev{Minor: 44}, FSType: "nfs4"}, false},
		"both private":              {facts.Mount{Dev: facts.Dev{Minor: 44}, FSType: "nfs4"}, facts.Mount{Dev: facts.Dev{Minor: 44}, FSType: "nfs4"}, false},
		"another superblock":        {dead, facts.Mount{Dev: facts.Dev{Minor: 45}, FSType: "nfs4", Propagation: facts.Propagation{Shared: 7}}, false},
		"no NFS, of its superblock": {facts.Mount{}, facts.Mount{Dev: facts.Dev{Minor: 44}, FSType: "fuse.x"}, true},
		"no NFS, of another":        {facts.Mount{}, facts.Mount{Dev: facts.Dev{Minor: 45}, FSType: "fuse.x"}, false},
	} {
		if got := d.isCopy(tc.dead, tc.e); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Nor is what answers taken for dead, or what may answer others.
func TestStillDead(t *testing.T) {
	for errno, refused := range map[syscall.Errno]bool{
		0: true, unix.EINTR: true, unix.EACCES: true, unix.EPERM: true, unix.EKEYEXPIRED: true, unix.ENOTCONN: false, unix.EIO: false, unix.ESHUTDOWN: false,
	} {
		if err := stillDead("fuse.x", errno); errors.Is(err, operation.ErrRefused) != refused || !refused && err != nil {
			t.Errorf("%v: %v", errno, err)
		}
	}
	for fsType, errno := range map[string]syscall.Errno{"ceph": unix.EACCES, "fuse.ceph-fuse": unix.EPERM} {
		if err := stillDead(fsType, errno); err != nil {
			t.Errorf("an evicted client: %v", err)
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
	if err := checkStaleTwice(int(f.Fd())); !errors.Is(err, operation.ErrRefused) {
		t.Errorf("got %v", err)
	}
}
