package integration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestClaimNameThatNoClaimHas has a tenant create pods of this node that list claims which
// nobody can create. The API takes them.
func TestClaimNameThatNoClaimHas(t *testing.T) {
	m := newMember(t)
	tenant := m.api.Namespace(t)
	for i, name := range []string{"a/b", "..", "50%"} {
		p := cluster.Pod(tenant, "odd"+string(rune('a'+i)), thisNode)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "odd", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
		cluster.Create(t, m.api, p)
	}
	m.Start()
	v := m.ruled("beside")
	for range 3 {
		m.forgets()
		v.Heals()
	}
}
