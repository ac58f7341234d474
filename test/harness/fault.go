package harness

import (
	"path/filepath"
	"time"

	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// NewFUSEVolume makes a volume that a FUSE daemon serves, staged and published,
// as those of FUSE drivers are.
func (n *Node) NewFUSEVolume(id string, c faultfs.Config) (*Volume, *faultfs.FS) {
	n.T.Helper()
	v := n.layOut("fuse", id)
	f := faultfs.Mount(n.T, v.Staging, c)
	v.Publish(PodUID)
	return v, f
}

// NewVolumeOnFaults makes a volume whose disk fails as a test tells it to: a loop
// device over a file of a faultfs.
func (n *Node) NewVolumeOnFaults(fs, id string) (*Volume, *faultfs.FS) {
	n.T.Helper()
	v := n.layOut(fs, id)
	v.newImage()
	below := filepath.Join(n.Dir, "faults-"+hash(id)[:8])
	Mkdir(n.T, below)
	// The kernel asks the filesystem below for attributes when a process asks
	// about the loop device: it shall know them.
	f := faultfs.Mount(n.T, below, faultfs.Config{Disk: v.Image, Valid: time.Hour})
	v.Image = f.Disk()
	v.Attach()
	n.T.Cleanup(func() {
		// First of all: an unmount of a disk that does not answer never ends.
		f.Abort()
		unmountBeneath(n.T, n.Dir)
		v.Detach()
	})
	v.setUp()
	return v, f
}
