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

const (
	// restages is how often a daemon is killed.
	restages = 10
	// podVolumes are those whose daemons live in the driver's pod, and podAway how long that is
	// away.
	podVolumes = 20
	podAway    = 5 * time.Second
)

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
		staging = append(staging, stages(d, fmt.Sprint("staged-", i)))
	}
	row(fmt.Sprintf("a killed daemon's volume is back at its target, p50 of %d, without a call", restages),
		fmt.Sprintf("the driver stages in %s", milli(staging.median())), float64(took.median()-staging.median())/float64(time.Millisecond), atMost(500, " ms more"))
}

// stages returns how long the driver takes to stage a volume, as kubelet has it do.
func stages(d *harness.CSIDriver, id string) time.Duration {
	v := d.NewVolume(id)
	d.Call(func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := csi.NewNodeClient(conn).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.ID, StagingTargetPath: v.Staging})
		return err
	})
	start := time.Now()
	d.Call(d.Stages(v))
	return time.Since(start)
}

// TestPodBack measures how long volumes are dead after the driver's pod, in which their daemons
// lived, is back: from the plugin that serves again to the last volume that reads, without a call.
func TestPodBack(t *testing.T) {
	wanted(t, "restage-pod")
	n := harness.NewNode(t, asReleased, "--standalone", "--loop=heal", "--check-interval=10s", "--restage-driver="+harness.Driver+"=unmount-first")
	d := n.NewCSIDriver(csidriver.Mode{NoAddons: true})
	n.Start()
	var all []*harness.Volume
	for i := range podVolumes {
		v := d.NewVolume(fmt.Sprint("v", i))
		n.StartContainer(harness.ContainerSpec{Name: v.ID, Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}}}) // which wants it
		n.Expect("healthy", d.Request(v))
		all = append(all, v)
	}
	time.Sleep(11 * time.Second) // until all daemons are followed
	d.Terminate()
	d.AwaitDead(all...)
	time.Sleep(podAway)
	d.Start()
	start := time.Now()
	for _, v := range all {
		harness.Eventually(t, "the volume reads", func() bool { return unix.Statfs(v.MountPoint(), new(unix.Statfs_t)) == nil })
	}
	took := time.Since(start)
	var staging time.Duration
	for i := range podVolumes {
		staging += stages(d, fmt.Sprint("staged-", i))
	}
	row(fmt.Sprintf("driver's pod back after %s -> last of %d volumes reads, without a call", podAway, podVolumes),
		fmt.Sprintf("%s; the driver stages them in %s", milli(took), milli(staging)), float64(took-staging)/float64(time.Millisecond), atMost(3000, " ms more"))
}
