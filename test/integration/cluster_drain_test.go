package integration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// Cordon says whether the node takes new pods.
func (m *member) Cordon(is bool) {
	m.T.Helper()
	cluster.Change(m.T, m.api, m.object, func(n *corev1.Node) { n.Spec.Unschedulable = is })
}

// Drained waits until the volume is refused because its pod goes.
func (v ruled) Drained() {
	v.m.T.Helper()
	v.Refused("the node is being drained", "pod "+v.pod.Namespace+"/"+v.pod.Name+", which uses the volume, is terminating")
}

// TestDrain heals on a cordoned node although pods of other volumes terminate there, for
// ever if their owner wants that, and not once the volume's own pod does.
func TestDrain(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("drained")
	m.Cordon(true)
	tenant := m.api.Namespace(t)
	stays := cluster.Pod(tenant, "stays", thisNode)
	stays.Finalizers = []string{"example.com/stays"}
	stays = cluster.Terminate(t, m.api, cluster.Create(t, m.api, stays))
	m.forgets() // its first list has that pod
	v.Heals()
	harness.Eventually(t, "it is healed once more", func() bool {
		answer := m.answer(v.Request())
		if strings.Contains(answer, tenant) || strings.Contains(answer, stays.Name) {
			t.Errorf("the answer names another tenant's pod: %s", answer)
		}
		return strings.HasPrefix(answer, "healed:")
	})
	v.Lose() // what that call healed
	cluster.Terminate(t, m.api, v.pod)
	v.Drained()
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
	v.Drained()
	m.Cordon(false)
	v.Heals()
}
