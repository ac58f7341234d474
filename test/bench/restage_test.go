package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// restages is how often a daemon is killed.
const restages = 10

// TestRestage measures how long a pod is without its volume when the daemon dies and
// nothing is called, beside the time that the driver takes to stage it.
func TestRestage(t *testing.T) {
	wanted(t, "restage")
	m := newMember(t, "--loop=heal", "--check-interval=10s")
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: apiNamespace, Name: apiAccount}}
	cluster.Change(t, m.api, settings, func(s *corev1.ConfigMap) {
		s.Data = map[string]string{"restage-drivers": harness.Driver + ": unmount-first"}
	})
	t.Cleanup(func() { cluster.Delete(t, m.api, settings) })
	d := m.NewCSIDriver(csidriver.Mode{NoAddons: true})
	v := d.NewVolume("restaged")
	v.Unpublish() // the API knows no such pod
	harness.Must(t, os.RemoveAll(filepath.Join(m.Kubelet, "pods", harness.PodUID)))
	object, request := m.use(v)
	cluster.Create(t, m.api, object.Attachment(apiNode))
	m.Start()
	m.Expect("healthy", request)
	var took, staging times
	for range restages {
		time.Sleep(11 * time.Second) // until the daemon is followed, and that it dies is no relapse
		d.KillDaemon(v)
		start := time.Now()
		harness.Eventually(t, "the volume is back", func() bool { return unix.Statfs(request.GetVolumePath(), new(unix.Statfs_t)) == nil })
		took = append(took, time.Since(start))
	}
	for i := range restages {
		other := d.NewVolume(fmt.Sprint("staged-", i))
		d.Call(func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := csi.NewNodeClient(conn).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: other.ID, StagingTargetPath: other.Staging})
			return err
		})
		start := time.Now()
		d.Call(d.Stages(other))
		staging = append(staging, time.Since(start))
	}
	row(fmt.Sprintf("a killed daemon's volume is back at its target, p50 of %d, without a call", restages),
		fmt.Sprintf("the driver stages in %s", milli(staging.median())), float64(took.median()-staging.median())/float64(time.Millisecond), atMost(500, " ms more"))
}
