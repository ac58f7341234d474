package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestNothingIsReportedOfVolumesOnOtherNodes has a caller name a volume of another
// node at a path of this one: nothing is reported to the owner of that volume.
func TestNothingIsReportedOfVolumesOnOtherNodes(t *testing.T) {
	m := newMember(t)
	m.Start()
	far := cluster.Volume{PV: "pv-far", ID: "far", Driver: harness.Driver, Namespace: m.namespace, Claim: "far"}
	_, claim := m.api.Bind(t, far)
	pod := cluster.Create(t, m.api, cluster.Pod(m.namespace, "far", "another-node", "far"))
	empty := filepath.Join(m.Kubelet, "plugins")
	harness.Must(t, os.MkdirAll(empty, 0o755))
	here := m.newClaimed("tmpfs", "here")

	_, err := csi.NewNodeClient(m.Conn).NodeGetVolumeHealth(within(t), &csi.NodeGetVolumeHealthRequest{VolumeId: far.ID, VolumePublishPath: empty})
	if status.Code(err) != codes.NotFound {
		t.Errorf("health: %v", err)
	}
	request := here.Volume.Request()
	request.VolumeId, request.VolumePath, request.StagingTargetPath = far.ID, empty, ""
	m.Expect("abnormal", request)

	// By the time that a later answer is told, nothing came of those.
	m.Expect("healthy", here.Request())
	here.becomes("healthy")
	for _, object := range []string{pod.Name, claim.Name} {
		if all, messages := m.told(object); len(all) > 0 {
			t.Errorf("%s was told %v: %s", object, all, messages)
		}
	}
	now, err := m.api.Admin().CoreV1().PersistentVolumeClaims(m.namespace).Get(t.Context(), claim.Name, metav1.GetOptions{})
	if harness.Must(t, err); len(now.Annotations) != len(claim.Annotations) {
		t.Errorf("the claim has %v", now.Annotations)
	}
}

// TestLostMountPointIsSeenFromEveryPath asks for a volume of two pods, of which one
// lost its mount, by every path that names it: all answers agree, and the claim's
// health stays the same.
func TestLostMountPointIsSeenFromEveryPath(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.newClaimed("ext4", "two", func(c *cluster.Volume) { c.Access = corev1.ReadWriteMany })
	second := cluster.Create(t, m.api, m.unstarted("second", v.object.Claim))
	v.Publish(string(second.UID))
	m.Expect("healthy", v.Request())
	harness.Run(t, "umount", v.MountPointOf(string(second.UID)))
	for range 3 {
		for name, q := range map[string]*csi.NodeGetVolumeHealthRequest{
			"the id":               {VolumeId: v.ID},
			"staging":              {VolumeId: v.ID, StagingTargetPath: v.Staging},
			"the lost mount point": {VolumeId: v.ID, VolumePublishPath: v.MountPointOf(string(second.UID))},
			"the other one":        {VolumeId: v.ID, VolumePublishPath: v.MountPoint()},
		} {
			if got := csiHealth(t, m.Node, q); !slices.Equal(got, []string{"INACCESSIBLE NotMounted"}) {
				t.Fatalf("by %s: %v", name, got)
			}
		}
	}
	v.becomes("unhealthy")
	v.isTold("Warning VolumeAbnormal 1")

	// And a heal by one path heals the other.
	m.Expect("healed", v.Request())
	v.becomes("healthy")
}
