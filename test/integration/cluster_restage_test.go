package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// restaged is a volume of the tests' CSI driver in a cluster.
type restaged struct {
	*claimed
	d *harness.CSIDriver
}

// newRestaged makes a volume that was seen healthy, and kills its daemon.
func (m *member) newRestaged(d *harness.CSIDriver, id string, change ...func(*cluster.Volume)) restaged {
	m.T.Helper()
	v := restaged{m.claimed(d.NewVolume(id), change...), d}
	cluster.Create(m.T, m.api, v.object.Attachment(thisNode))
	m.Expect("healthy", v.Request())
	d.KillDaemon(v.Volume)
	return v
}

// refused waits until the step is refused for a reason, and sees that nothing changed.
func (v restaged) refused(why string) {
	v.m.T.Helper()
	dead := v.m.Table()
	harness.Eventually(v.m.T, "restage is refused: "+why, func() bool {
		said := v.m.answer(v.Request())
		return saysAll(said, "restage of the staging mount point", why)
	})
	v.m.SameTable(dead)
}

// heals waits until the volume is healed.
func (v restaged) heals() {
	v.m.T.Helper()
	harness.Eventually(v.m.T, "the volume is staged anew", func() bool {
		return saysAll(v.m.answer(v.Request()), "healed:", "restage of the staging mount point; ")
	})
}

// TestRestageInACluster stages a volume anew with what the cluster has of it, and with
// nothing else.
func TestRestageInACluster(t *testing.T) {
	m := newMember(t)
	d := m.NewCSIDriver(csidriver.Mode{NoAddons: true})
	m.Start()
	secret := cluster.Create(t, m.api, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: "of-the-volume"},
		Data:       map[string][]byte{"userKey": []byte(harness.Canary)},
	})
	v := m.newRestaged(d, "anew", func(v *cluster.Volume) {
		v.Options, v.Access = []string{"noatime"}, corev1.ReadWriteMany
		v.Source = corev1.CSIPersistentVolumeSource{
			FSType: "fuse", VolumeAttributes: map[string]string{"bucket": "b"},
			NodeStageSecretRef: &corev1.SecretReference{Namespace: m.namespace, Name: secret.Name},
		}
	})
	request := v.Request()
	request.Secrets, request.VolumeContext = nil, nil
	ask := func(has ...string) {
		t.Helper()
		harness.Eventually(t, "the answer has "+has[len(has)-1], func() bool { return saysAll(m.answer(request), has...) })
	}
	ask("driver "+harness.Driver+" is not switched on", "restage-drivers in "+settingsName)
	m.Settings(map[string]string{"restage-drivers": harness.Driver + ": unmount-first"})
	ask("nodeStageSecretRef of PersistentVolume " + v.PV + ": the Secret cannot be read (Forbidden)")
	m.api.Kubectl(t, "apply", "--filename="+roleForSecret(t, secret))
	ask("healed:", "restage of the staging mount point; ", "replace of the target")
	got, err := d.LastStage(v.ID)
	harness.Must(t, err)
	want := &csi.NodeStageVolumeRequest{
		VolumeId: v.ID, StagingTargetPath: v.Staging, Secrets: map[string]string{"userKey": harness.Canary},
		VolumeContext: map[string]string{"bucket": "b"}, PublishContext: map[string]string{"devicePath": "/dev/none"},
		VolumeCapability: &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "fuse", MountFlags: []string{"noatime"}}},
		},
	}
	if !proto.Equal(got, want) {
		t.Errorf("the driver was called with\n%s\nkubelet would call it with\n%s", got, want)
	}
}

// roleForSecret is a file with the Role of docs/restage.md for a Secret.
func roleForSecret(t *testing.T, secret *corev1.Secret) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/restage.md")
	harness.Must(t, err)
	_, role, _ := strings.Cut(string(page), "```yaml\napiVersion: rbac")
	role, _, found := strings.Cut(role, "```")
	if !found {
		t.Fatal("the page has no Role")
	}
	role = strings.NewReplacer("<namespace of the Secret>", secret.Namespace, "<name of the Secret>", secret.Name).Replace("apiVersion: rbac" + role)
	file := filepath.Join(t.TempDir(), "role.yaml")
	harness.Must(t, os.WriteFile(file, []byte(role), 0o600))
	return file
}

// TestRestageIsWanted stages nothing anew that no pod of this node wants now, and what
// kubelet alone can build.
func TestRestageIsWanted(t *testing.T) {
	m := newMember(t)
	d := m.NewCSIDriver(csidriver.Mode{NoAddons: true})
	m.Start()
	m.Settings(map[string]string{"restage-drivers": harness.Driver + ": unmount-first"})
	v := m.newRestaged(d, "wanted")
	driver := cluster.Create(t, m.api, cluster.CSIDriver(harness.Driver, true))
	yes, no := true, false
	cluster.Change(t, m.api, driver, func(d *storagev1.CSIDriver) { d.Spec.SELinuxMount = &yes })
	v.refused("seLinuxMount")
	cluster.Change(t, m.api, driver, func(d *storagev1.CSIDriver) {
		d.Spec.SELinuxMount, d.Spec.TokenRequests = &no, []storagev1.TokenRequest{{Audience: "a"}}
	})
	attachment := v.object.Attachment(thisNode)
	cluster.Delete(t, m.api, attachment)
	v.refused("volumeattachments.storage.k8s.io")
	cluster.Create(t, m.api, attachment)
	v.heals()

	// Its pod's only process ends while the driver stages, which the API does not show, and the driver mounts
	// nothing: the path is not left bare.
	m.runsAnother()
	app := m.StartContainer(harness.ContainerSpec{Pod: string(v.pod.UID)})
	cluster.Change(t, m.api, v.pod, saidToRun)
	d.KillDaemon(v.Volume)
	d.Behave(csidriver.Mode{Waits: true, Stage: csidriver.NeverBare})
	harness.Must(t, d.Forget(v.ID))
	late := m.BeginUntil(v.Request(), "the driver is called", func() bool { _, err := d.LastStage(v.ID); return err == nil })
	app.Kill()
	d.Behave(csidriver.Mode{Stage: csidriver.NeverBare})
	if said := late.Answer().GetMessage(); !saysAll(said, "abnormal:", "has no process here any more") || strings.Contains(said, "StagedWithoutPod") {
		t.Errorf("it says %q", said)
	}
	disconnected(t, v.Staging)
	d.Behave(csidriver.Mode{})
	cluster.Change(t, m.api, v.pod, func(p *corev1.Pod) { p.Status.ContainerStatuses = nil })
	v.heals()

	// The pod goes while the driver stages: nothing is published.
	d.KillDaemon(v.Volume)
	d.Behave(csidriver.Mode{Waits: true})
	harness.Must(t, d.Forget(v.ID))
	b := m.BeginUntil(v.Request(), "the driver is called", func() bool { _, err := d.LastStage(v.ID); return err == nil })
	cluster.Terminate(t, m.api, v.pod)
	d.Behave(csidriver.Mode{})
	if said := b.Answer().GetMessage(); !saysAll(said, "abnormal:", "StagedWithoutPod", "no longer wanted") {
		t.Errorf("it says %q", said)
	}
	disconnected(t, v.MountPoint())
	d.KillDaemon(v.Volume)
	v.refused("is terminating")
}
