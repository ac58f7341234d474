package harness

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// kept is the environment variable with a directory that outlives the machine:
// what a test leaves there, a test after the next boot finds.
const kept = "NODE_HEALER_TEST_KEPT"

// NewKeptNode is NewNode with everything on a disk that outlives the machine:
// images, the data of FUSE disks, kubelet's directories, and the state directory.
func NewKeptNode(t testing.TB, args ...string) *Node {
	t.Helper()
	NeedsRoot(t)
	dir := os.Getenv(kept)
	if dir == "" {
		t.Skip("only around a reboot (make kernels)")
	}
	n := &Node{T: t, Dir: dir, Args: args, Kubelet: filepath.Join(dir, "kubelet"), Log: LogFile(filepath.Join(dir, "log"))}
	Mkdir(t, n.Kubelet)
	Must(t, unix.Mount(n.Kubelet, n.Kubelet, "", unix.MS_BIND, ""))
	Must(t, unix.Mount("", n.Kubelet, "", unix.MS_SHARED, ""))
	t.Cleanup(func() {
		n.Stop()
		unmountBeneath(t, n.Dir)
	})
	return n
}

// KeptVolume is a volume that NewVolume made before a reboot: its disk is attached,
// and nothing is mounted.
func (n *Node) KeptVolume(fs, id string) *Volume {
	n.T.Helper()
	v := n.layOut(fs, id)
	v.Image = filepath.Join(n.Dir, hash(id)+".img")
	v.Attach()
	n.T.Cleanup(func() { unmountBeneath(n.T, n.Dir); v.Detach() })
	return v
}

// KeptFUSEDisk is a volume that NewFUSEDisk made before a reboot: it is staged again.
func (n *Node) KeptFUSEDisk(id string) (*Volume, *FUSEDisk) {
	n.T.Helper()
	v := n.layOut("fuse", id)
	d := &FUSEDisk{Backing: filepath.Join(n.Dir, "disk-"+hash(id)[:8]), volume: v, config: FUSEConfig{Source: "diskfs:" + id}}
	n.T.Cleanup(d.end)
	d.stage()
	return v, d
}
