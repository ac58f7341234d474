package integration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// Cordon says whether the node takes new pods.
func (m *member) Cordon(is bool) {
	m.T.Helper()
	cluster.Change(m.T, m.api, m.object, func(n *corev1.Node) { n.Spec.Unschedulable = is })
}

// Leaving is a pod of this node that is terminating.
func (m *member) Leaving(name string) *corev1.Pod {
	m.T.Helper()
	return cluster.Terminate(m.T, m.api, cluster.Create(m.T, m.api, cluster.Pod(m.namespace, name, thisNode)))
}

// Drained waits until the volume is refused because of a pod that goes.
func (v ruled) Drained(pod *corev1.Pod) {
	v.m.T.Helper()
	v.Refused("the node is being drained", "pod "+pod.Namespace+"/"+pod.Name+" is terminating")
}

// TestDrain heals nothing while the node is drained: it is cordoned, and pods
// terminate. A terminating pod of a DaemonSet does not count: drains leave those
// alone.
func TestDrain(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("drained")
	first := m.Leaving("first")
	v.Heals() // a pod that goes is no drain
	m.Cordon(true)
	v.Drained(first)
	cluster.Delete(t, m.api, first)
	v.Heals() // nor is a cordon

	// The server hears of pods in the order in which they change: once the last
	// one is gone, it knows of the DaemonSet's, which still goes.
	set := cluster.Create(t, m.api, cluster.DaemonSet(m.namespace, "daemons"))
	cluster.Terminate(t, m.api, cluster.Create(t, m.api, cluster.PodOf(set, thisNode)))
	second := m.Leaving("second")
	v.Drained(second)
	cluster.Delete(t, m.api, second)
	v.Heals()

	third := m.Leaving("third")
	v.Drained(third)
	m.Cordon(false)
	v.Heals()
}

// TestDrainBeforeContainers heals nothing for a running container either while the
// node is drained.
func TestDrainBeforeContainers(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := ruled{claimed: m.newClaimed("ext4", "held")}
	m.Expect("healthy", v.Request())
	m.NewContainer(string(v.pod.UID), v.MountPoint())
	v.Lose()
	cluster.Terminate(t, m.api, v.pod)
	v.Heals()
	m.Cordon(true)
	v.Drained(v.pod)
	m.Cordon(false)
	v.Heals()
}
