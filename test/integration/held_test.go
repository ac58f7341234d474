package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestHeld expects the message of a sick volume to say in which containers it is mounted,
// and how often in all.
func TestHeld(t *testing.T) {
	n := harness.NewNode(t, seesShutdown()...).Start()
	next := newNeighbour(n)
	v := n.NewVolume("ext4", "held")
	c := n.NewContainer(harness.PodUID, v.MountPoint())
	n.Expect("healthy", v.Request())
	shutdown(t, v.Staging)
	for range 2 {
		n.Expect("abnormal", v.Request(), "FilesystemShutdown", "Held by 3 mounts, also in pod "+harness.PodUID+" container "+c.ID()[:12])
	}
	next.untouched()
}

// TestHeldDirectory deletes the directory behind a volume that is one of a filesystem with
// others: the containers that have those are not named.
func TestHeldDirectory(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	shared := n.NewVolume("ext4", "shared").Staging
	mine, others := filepath.Join(shared, "volume"), filepath.Join(shared, "other")
	harness.Mkdir(t, mine)
	harness.Mkdir(t, others)
	v := n.NewStagedVolume("ext4", "held", func(staging string) { harness.Must(t, unix.Mount(mine, staging, "", unix.MS_BIND, "")) })
	c := n.NewContainer(harness.PodUID, v.MountPoint())
	n.NewContainer(harness.UnrelatedPod, others)
	n.Expect("healthy", v.Request())
	harness.Must(t, os.Remove(mine))
	n.Expect("abnormal", v.Request(), "StaleFileHandle", "deleted", "Held by 3 mounts, also in pod "+harness.PodUID+" container "+c.ID()[:12]+". ")
}
