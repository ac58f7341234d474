package integration

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// heldBy expects the answer that a person gets to say in which containers a sick volume is
// mounted, and how often in all.
func heldBy(n *harness.Node, v *harness.Volume, c *harness.Container, reason string) {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(n.T.Context(), harness.Patience)
	defer cancel()
	n.Expect("abnormal", v.Request(), reason)
	said, err := adminpb.NewAdminClient(n.Conn).HealVolume(ctx, &adminpb.HealVolumeRequest{VolumeId: v.ID, Path: v.MountPoint()})
	harness.Must(n.T, err)
	want := "Held by 3 mounts, also in pod " + harness.PodUID + " container " + c.ID()[:12]
	if notes := said.GetNotes(); len(notes) != 1 || notes[0] != want {
		n.T.Errorf("the answer lacks %q: %q", want, notes)
	}
}

// TestHeld looks at a volume that the host and a container have mounted.
func TestHeld(t *testing.T) {
	n := harness.NewNode(t, seesShutdown()...).Start()
	next := newNeighbour(n)
	v := n.NewVolume("ext4", "held")
	c := n.NewContainer(harness.PodUID, v.MountPoint())
	n.Expect("healthy", v.Request())
	shutdown(t, v.Staging)
	for range 2 {
		heldBy(n, v, c, "FilesystemShutdown")
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
	heldBy(n, v, c, "StaleFileHandle")
}
