package e2e

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// Restage has the driver stage the app's volume once more, as it would by itself
// when it sees that its daemon has died: the test says when.
func (n *Node) Restage(a *App) {
	n.T.Helper()
	conn, err := n.Driver.Dial()
	harness.Must(n.T, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	_, err = csi.NewNodeClient(conn).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: a.Volume, StagingTargetPath: a.Staged, VolumeCapability: csidriver.Capability(),
	})
	harness.Must(n.T, err)
}

// DeleteApp deletes the pod and waits until kubelet has unpublished and unstaged
// its volume.
func (n *Node) DeleteApp(a *App) {
	n.T.Helper()
	n.Cluster.Kubectl(n.T, "delete", "pod/"+a.name, "--timeout=5m")
	eventually(n.T, "kubelet has let the volume go", func() error {
		for _, m := range harness.Mounts(n.T, "self") {
			if m.FSType == "fuse."+csidriver.FSType && m.Source == a.Volume {
				return errors.New("still mounted at " + m.Path)
			}
		}
		for _, path := range []string{a.Published, strings.TrimSuffix(a.Staged, "/globalmount")} {
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				return errors.Join(errors.New("still there: "+path), err)
			}
		}
		return nil
	})
}
