package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

const (
	apiNamespace, apiAccount, apiNode = "csi-addons-node-healer", "node-healer", "node-1"

	idleVolumes = 50
	// idleTime is for how long each volume is checked again, idleEvery how often.
	idleTime, idleEvery = time.Minute, 5 * time.Second
	// rememberAtLeast is after how long at the soonest what was read by name, or
	// written of a claim, comes once more.
	rememberAtLeast = 48 * time.Minute
	// watchAtLeast is how long a watch lasts at least.
	watchAtLeast = 5 * time.Minute

	manyVolumes = 40_000
	// manyChecks is how often a write to the disk is asked for, each time with a list
	// of all volumes and attachments.
	manyChecks = 10
)

// member is a node of a cluster whose requests are counted.
type member struct {
	*harness.Node
	api       *cluster.Cluster
	proxy     *cluster.Proxy
	namespace string
}

func newMember(t *testing.T, args ...string) *member {
	t.Helper()
	m := &member{api: emptyAPI(t)}
	m.api.Apply(t, "deploy")
	m.namespace = m.api.Namespace(t)
	cluster.Create(t, m.api, cluster.Node(apiNode))
	_, kubeconfig := m.api.DaemonPod(t, apiNamespace, apiAccount, apiNode)
	m.proxy = m.api.Proxy(t, kubeconfig)
	m.Node = harness.NewNode(t, append([]string{asReleased, "--kubeconfig=" + m.proxy.Kubeconfig}, args...)...)
	t.Cleanup(func() { m.Stop() })
	return m
}

// emptyAPI starts an API for one line: what it measures depends on all objects that
// there are, and those of thousands are not taken away one by one.
func emptyAPI(t *testing.T) *cluster.Cluster {
	t.Helper()
	api := cluster.Start(t)
	t.Cleanup(cluster.Stop)
	return api
}

// use has a pod of the node use a volume, by a claim, and returns what to ask.
func (m *member) use(v *harness.Volume) (cluster.Volume, *healerpb.NodeHealerRequest) {
	m.T.Helper()
	object := cluster.Volume{PV: v.PV, ID: v.ID, Driver: harness.Driver, Namespace: m.namespace, Claim: "claim-" + v.ID}
	m.api.Bind(m.T, object)
	pod := cluster.Create(m.T, m.api, cluster.Pod(m.namespace, "pod-"+v.ID, apiNode, object.Claim))
	v.Publish(string(pod.UID))
	request := v.Request()
	request.VolumePath = v.MountPointOf(string(pod.UID))
	return object, request
}

// TestRequests counts what an idle node asks of the API: all volumes are healthy, and
// are checked again and again. What comes once in an hour at most is counted as if it
// all came as soon as it may.
func TestRequests(t *testing.T) {
	wanted(t, "requests")
	m := newMember(t)
	var requests []*healerpb.NodeHealerRequest
	for i := range idleVolumes {
		_, r := m.use(newTmpfs(m.Node, fmt.Sprintf("idle-%02d", i)))
		requests = append(requests, r)
	}
	m.Start()
	check := func() {
		for _, r := range requests {
			m.Expect("healthy", r)
		}
	}
	check()
	harness.Eventually(t, "each claim says how its volume is", func() bool { return len(m.proxy.Requests("PATCH ", "/persistentvolumeclaims/")) == idleVolumes })
	first, watches := len(m.proxy.Requests()), len(m.proxy.Requests(" watch"))
	for start := time.Now(); time.Since(start) < idleTime; time.Sleep(idleEvery) {
		check()
	}
	meanwhile := m.proxy.Requests()[first:]
	rate := float64(len(meanwhile))/idleTime.Seconds() + float64(first-watches)/rememberAtLeast.Seconds() + float64(watches)/watchAtLeast.Seconds()
	row(fmt.Sprintf("requests to the API for each second of an idle node with %d volumes", idleVolumes),
		fmt.Sprintf("%d at first, %d watches, then %d in %s", first-watches, watches, len(meanwhile), idleTime), rate, atMost(0.1, "/s"))
}

// TestVolumes measures what volumes of other nodes cost: a disk whose filesystem counted
// an error is checked, and written to after a list of them all.
func TestVolumes(t *testing.T) {
	wanted(t, "volumes")
	m := newMember(t)
	v := newLoops(m.Node).volume("disk")
	object, request := m.use(v)
	cluster.Create(t, m.api, object.Attachment(apiNode))
	m.Start()
	m.Expect("healthy", request)
	disk := filepath.Base(strings.TrimSpace(harness.Run(t, "findmnt", "--noheadings", "--output=SOURCE", v.Staging)))
	harness.Must(t, os.WriteFile("/sys/fs/ext4/"+disk+"/trigger_fs_error", []byte("bench"), 0o600))
	harness.Eventually(t, "the error is counted", func() bool { return strings.HasPrefix(m.Message(request), "abnormal") })
	measure := func() (memoryUse, time.Duration) {
		start := time.Now()
		for range manyChecks {
			m.Expect("abnormal", request, "a write still succeeds")
		}
		took := time.Since(start) / manyChecks
		awaitQuiet(m.Node)
		return memoryOf(m.Node), took
	}
	none, quick := measure()
	many(t, manyVolumes, func(ctx context.Context, i int) error {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volumeOf(i)}, Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: tenGi(), StorageClassName: className,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: m.namespace, Name: claimOf(i), UID: "00000000-0000-4000-8000-000000000000"},
		}}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
			Driver: harness.Driver, VolumeHandle: handleOf(i), FSType: "ext4",
			VolumeAttributes: map[string]string{"clusterID": "storage-system", "pool": "replicapool", "imageName": "csi-vol-" + handleOf(i)},
		}
		if _, err := m.api.Admin().CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil {
			return err
		}
		a := cluster.Volume{PV: volumeOf(i), ID: handleOf(i), Driver: harness.Driver}.Attachment("node-2")
		_, err := m.api.Admin().StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
		return err
	})
	before := len(m.proxy.Requests("/persistentvolumes")) // with their pages
	all, slow := measure()
	pages := (len(m.proxy.Requests("/persistentvolumes")) - before) / manyChecks
	row(fmt.Sprintf("memory of the server with %d PVs in the cluster, over that with none", manyVolumes),
		fmt.Sprintf("%.1f, before %.1f MiB", mebi(all.server.resident), mebi(none.server.resident)),
		mebi(all.server.resident-none.server.resident), atMost(5, " MiB"))
	row("the most that the server ever had", "", mebi(peakOf(t, m.PID())), untold(" MiB"))
	row("a check that tries a write to a disk, with a list of them all", fmt.Sprintf("%d pages of PVs; with none %s", pages, quick.Round(time.Millisecond)), slow.Seconds(), untold(" s"))
}
