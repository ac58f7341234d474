package integration

import (
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// callersRequest is a request that names the volume, and a backend of the caller's own.
func callersRequest(v *claimed) *healerpb.NodeHealerRequest {
	r := v.Request()
	r.Secrets = map[string]string{"userKey": "the caller's", "endpoint": "https://caller.example.com"}
	r.VolumeContext = map[string]string{"bucket": "the caller's"}
	r.VolumeCapability = &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "fuse.callers", MountFlags: []string{"suid"}}},
	}
	return r
}

// TestCallerChoosesNoBackend has a caller name a backend of its own for somebody's volume:
// the driver is called with what the API says, or, without the right to read that, not at
// all. What the driver says then of the secrets is repeated in no spelling.
func TestCallerChoosesNoBackend(t *testing.T) {
	m := newMember(t)
	d := m.NewCSIDriver(csidriver.Mode{NoAddons: true})
	m.Start()
	m.Settings(map[string]string{"restage-drivers": harness.Driver + ": unmount-first"})
	secret := cluster.Create(t, m.api, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: "of-the-driver"},
		Data:       map[string][]byte{"userKey": []byte(oddSecret)},
	})
	v := m.newRestaged(d, "callers", func(v *cluster.Volume) {
		v.Access = corev1.ReadWriteMany
		v.Source = corev1.CSIPersistentVolumeSource{
			VolumeAttributes: map[string]string{"bucket": "the volume's"}, NodeStageSecretRef: &corev1.SecretReference{Namespace: m.namespace, Name: secret.Name},
		}
	})
	harness.Must(t, d.Forget(v.ID))
	dead := m.Table()
	ask := func(has ...string) {
		t.Helper()
		var said string
		harness.Eventually(t, "the answer has "+has[len(has)-1], func() bool {
			said = m.answer(callersRequest(v.claimed))
			quotesNothing(t, oddSecret, "the answer", said)
			return saysAll(said, has...)
		})
	}
	ask("abnormal:", "nodeStageSecretRef of PersistentVolume "+v.PV, "Role", "node-healer-stage-secret in docs/restage.md")
	m.SameTable(dead)
	if got, err := d.LastStage(v.ID); err == nil {
		t.Fatalf("the driver was called with %s", got)
	}

	m.api.Kubectl(t, "apply", "--filename="+roleForSecret(t, secret))
	for _, text := range quotes(oddSecret) {
		d.Behave(csidriver.Mode{Answers: map[string]csidriver.Answer{"NodeStageVolume": {Code: codes.Unauthenticated, Text: text}}})
		ask("abnormal:", "NodeStageVolume: UNAUTHENTICATED: terminal; "+seeDriversLog)
	}
	d.Behave(csidriver.Mode{UserKey: oddSecret})
	ask("healed:", "restage of the staging mount point; ")
	harness.Eventually(t, "events tell it", func() bool {
		all, messages := m.told(v.pod.Name)
		quotesNothing(t, oddSecret, "an event", messages)
		return slices.Contains(all, "Normal VolumeHealed 1")
	})
	got, err := d.LastStage(v.ID)
	harness.Must(t, err)
	want := &csi.NodeStageVolumeRequest{
		VolumeId: v.ID, StagingTargetPath: v.Staging, Secrets: map[string]string{"userKey": oddSecret},
		VolumeContext: map[string]string{"bucket": "the volume's"}, PublishContext: map[string]string{"devicePath": "/dev/none"},
		VolumeCapability: &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		},
	}
	if !proto.Equal(got, want) {
		t.Errorf("the driver was called with\n%s\nkubelet would call it with\n%s", got, want)
	}
	keptNothing(t, m.Node, oddSecret)
}

// TestCallerChoosesNothingOfDelegate has a driver heal its volume by what the
// PersistentVolume says, without secrets; a driver that wants some is reported.
func TestCallerChoosesNothingOfDelegate(t *testing.T) {
	m := newMember(t)
	d := m.NewCSIDriver(csidriver.Mode{UserKey: "the caller's", Heal: csidriver.Publishes})
	m.Start()
	v := m.newClaimed("tmpfs", "callers", func(v *cluster.Volume) {
		v.Access = corev1.ReadOnlyMany
		v.Source = corev1.CSIPersistentVolumeSource{FSType: "volumes", VolumeAttributes: map[string]string{"bucket": "the volume's"}}
	})
	m.Expect("healthy", v.Request())
	v.Lose()
	ask := func(has ...string) {
		t.Helper()
		harness.Eventually(t, "the answer has "+has[len(has)-1], func() bool {
			said := m.answer(callersRequest(v))
			if !saysAll(said, has...) && m.mounted(v.MountPoint()) {
				v.Lose()
			}
			return saysAll(said, has...)
		})
	}
	ask("healed:", "delegate of the target failed", "NodeHealer: UNAUTHENTICATED", "no secrets", "rebind of the target")
	v.Lose()
	d.Behave(csidriver.Mode{Heal: csidriver.Publishes})
	ask("healed:", "delegate of the target.")
	got, err := d.LastHeal(v.ID)
	harness.Must(t, err)
	want := &healerpb.NodeHealerRequest{
		VolumeId: v.ID, VolumePath: v.MountPoint(), StagingTargetPath: v.Staging, VolumeContext: map[string]string{"bucket": "the volume's"},
		VolumeCapability: &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "volumes"}},
		},
	}
	if !proto.Equal(got, want) {
		t.Errorf("the driver was called with\n%s\nwant\n%s", got, want)
	}
}
