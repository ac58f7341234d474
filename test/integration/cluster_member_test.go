package integration

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// What the shipped manifests call everything.
const (
	manifests     = "deploy"
	ownNamespace  = "csi-addons-node-healer"
	ownAccount    = "node-healer"
	ownConfigMap  = "node-healer"
	modeOfHealing = "node-healer.csi-addons.io/mode"
	thisNode      = "node-1" // as the harness calls it
)

// member is a node of a real cluster: its server asks a real API, by the shipped
// service account and roles.
type member struct {
	*harness.Node
	api    *cluster.Cluster
	object *corev1.Node
	// kubeconfig has the token of the server's pod.
	kubeconfig string
	// namespace is where the test's pods and claims are.
	namespace string
}

// newMember makes a node and its object, and starts no server.
func newMember(t *testing.T, args ...string) *member {
	t.Helper()
	harness.NeedsRoot(t)
	m := &member{api: cluster.Start(t)}
	m.api.Apply(t, manifests)
	m.namespace = m.api.Namespace(t)
	m.object = cluster.Create(t, m.api, cluster.Node(thisNode))
	_, m.kubeconfig = m.api.DaemonPod(t, ownNamespace, "node-healer", thisNode)
	m.Node = harness.NewNode(t, append([]string{"--kubeconfig=" + m.kubeconfig}, args...)...)
	m.Transient = harness.BusyAPI
	return m
}

// claimed is a volume that one pod uses by a claim.
type claimed struct {
	*harness.Volume
	m      *member
	object cluster.Volume
	pv     *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim
	pod    *corev1.Pod
}

// newClaimed makes a real volume, the objects that the cluster would have of it,
// and publishes it for a pod of this node.
func (m *member) newClaimed(fs, id string, change ...func(*cluster.Volume)) *claimed {
	m.T.Helper()
	return m.claimed(m.NewVolume(fs, id), change...)
}

// claimed does the same for a volume that is there.
func (m *member) claimed(volume *harness.Volume, change ...func(*cluster.Volume)) *claimed {
	m.T.Helper()
	t := m.T
	v := &claimed{m: m, Volume: volume}
	// The harness's pod is none that the API has.
	v.Unpublish()
	harness.Must(t, os.RemoveAll(filepath.Join(m.Kubelet, "pods", harness.PodUID)))
	v.object = cluster.Volume{PV: v.PV, ID: v.ID, Driver: harness.Driver, Namespace: m.namespace, Claim: "data-" + v.ID, Block: v.FS == "block"}
	for _, c := range change {
		c(&v.object)
	}
	v.pv, v.claim = m.api.Bind(t, v.object)
	v.pod = cluster.Create(t, m.api, m.unstarted("app-"+v.ID, v.object.Claim))
	v.Publish(string(v.pod.UID))
	return v
}

// unstarted is a pod of this node of whose containers the API says nothing. None of them runs here, and a pod that
// has run looks evicted without one.
func (m *member) unstarted(name, claim string) *corev1.Pod {
	pod := cluster.Pod(m.namespace, name, thisNode, claim)
	pod.Status.ContainerStatuses = nil
	return pod
}

// MountPoint is where the volume is published for its pod.
func (v *claimed) MountPoint() string { return v.MountPointOf(string(v.pod.UID)) }

// Request names the pod's mount point.
func (v *claimed) Request() *healerpb.NodeHealerRequest {
	r := v.Volume.Request()
	r.VolumePath = v.MountPoint()
	return r
}

// Lose loses the published mount, as a stray umount does.
func (v *claimed) Lose() {
	v.m.T.Helper()
	harness.Run(v.m.T, "umount", v.MountPoint())
}

// lost makes a volume that was seen healthy, and then lost its published mount.
func (m *member) lost(id string) *claimed {
	m.T.Helper()
	v := m.newClaimed("ext4", id)
	m.Expect("healthy", v.Request())
	v.Lose()
	return v
}
