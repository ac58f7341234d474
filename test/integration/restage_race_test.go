package integration

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// kubelets are the calls that kubelet may make while a step runs.
func kubelets(d *harness.CSIDriver, v *harness.Volume) map[string]func(context.Context, *grpc.ClientConn) error {
	other := v.MountPointOf(harness.OtherPod)
	return map[string]func(context.Context, *grpc.ClientConn) error{
		"stage": d.Stages(v),
		"publish": func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := csi.NewNodeClient(conn).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
				VolumeId: v.ID, StagingTargetPath: v.Staging, TargetPath: other, VolumeCapability: csidriver.Capability(),
			})
			return err
		},
		"unpublish": func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := csi.NewNodeClient(conn).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID, TargetPath: v.MountPoint()})
			return err
		},
		"unstage": func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := csi.NewNodeClient(conn).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.ID, StagingTargetPath: v.Staging})
			return err
		},
	}
}

// TestRestageBesideKubelet makes each of kubelet's calls at every instant of a step.
// Afterwards kubelet tears the volume down as it always does: nothing is left, and no file
// of the volume is lost.
func TestRestageBesideKubelet(t *testing.T) {
	n, d := restaging(t, "unmount-first", csidriver.Mode{})
	n.Stop()
	count := 0
	for i, instant := range []string{"unmount-dead", "unmount-dead/one", "replace/cloned", "replace/beneath", "finalize"} {
		n.Pause = instant
		n.Start()
		for j, call := range []string{"stage", "publish", "unpublish", "unstage"} {
			if !inTurn(i, j%2, 2) {
				continue
			}
			t.Run(filepath.Base(instant)+" "+call, func(*testing.T) {
				count++
				v := d.NewVolume("v" + string(rune('a'+count)))
				n.Expect("healthy", d.Request(v))
				sum := v.Sum(v.MountPoint())
				d.KillDaemon(v)
				b := n.BeginAndStop(d.Request(v))
				_ = d.Try(kubelets(d, v)[call]) // it may have to try again
				b.Resume()
				_ = b.LetGo()
				d.TearDown(v, sum)
			})
		}
		n.Stop()
	}
}

// TestRestagePublishedMeanwhile publishes the volume for another pod while its staging
// path is bare: what the driver mounts then covers the directory, and the answer says so.
func TestRestagePublishedMeanwhile(t *testing.T) {
	n, d := restaging(t, "unmount-first", csidriver.Mode{})
	n.Stop()
	n.Pause = "unmount-dead/one"
	n.Start()
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	sum := v.Sum(v.MountPoint())
	d.KillDaemon(v)
	b := n.BeginAndStop(d.Request(v))
	d.Call(kubelets(d, v)["publish"])
	b.Resume()
	_ = b.LetGo()
	request := d.Request(v)
	request.VolumePath = v.MountPointOf(harness.OtherPod)
	n.Expect("abnormal", request, "StackedMounts", "covers another filesystem instance")
	if now := v.Sum(request.GetVolumePath()); now != sum {
		t.Error("the other pod has other data")
	}
	d.TearDown(v, sum)
}
