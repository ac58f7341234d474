package cluster

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// inputsCase is a volume that a driver stages with a Secret.
type inputsCase struct {
	t          *testing.T
	api        *kubetest.API
	c          *Cluster
	pv         *corev1.PersistentVolume
	secret     *corev1.Secret
	volume     healer.Case
	mountPoint healer.MountPoint
}

func withInputs(t *testing.T, run func(t *testing.T, i inputsCase)) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		d := newDisk(api)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "key"}}
		d.pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "default", Name: "key"}
		api.Put(secret, d.pv)
		d.driver(false)
		c, end := following(t, api)
		defer end()
		_, step := (&thisHost{t: t}).at(stagedMountPoint, false)
		run(t, inputsCase{
			t: t, api: api, c: c, pv: d.pv, secret: secret, mountPoint: step.MountPoint,
			volume: healer.Case{Volume: healer.Volume{ID: kubetest.Handle}, Driver: kubetest.DriverName, MountPoints: []healer.MountPoint{step.MountPoint}},
		})
	})
}

func (i inputsCase) ask() healer.StageInputs {
	i.t.Helper()
	in, err := i.c.Inputs(i.t.Context(), i.volume)
	if err != nil {
		i.t.Fatal(err)
	}
	return in
}

// wrote is what the API keeps of who wrote which fields now.
func wrote(fields string) []metav1.ManagedFieldsEntry {
	now := metav1.Now()
	return []metav1.ManagedFieldsEntry{{Time: &now, FieldsV1: metav1.NewFieldsV1(fields)}}
}

// A PersistentVolume and its Secret are read once a minute, and told apart from what they were.
func TestInputs(t *testing.T) {
	withInputs(t, func(t *testing.T, i inputsCase) {
		first := i.ask()
		if i.ask() != first || first.Version == "" || i.api.Count("get secrets") != 1 {
			t.Errorf("%+v after %d reads", first, i.api.Count("get secrets"))
		}
		annotates := wrote(`{"f:metadata":{"f:annotations":{}}}`)
		i.secret.Annotations, i.secret.ManagedFields = map[string]string{"at": "now"}, annotates
		i.pv.Annotations, i.pv.ManagedFields = map[string]string{"at": "now"}, annotates
		i.api.Put(i.secret, i.pv)
		time.Sleep(inputsTTL + time.Second)
		if got := i.ask(); got != first || i.api.Count("get secrets") != 2 {
			t.Errorf("an annotation is a change: %+v, not %+v", got, first)
		}
		at := metav1.Now()
		i.secret.Data, i.secret.ManagedFields = map[string][]byte{"key": []byte("new")}, wrote(`{"f:data":{"f:key":{}}}`)
		i.api.Put(i.secret)
		if got := i.ask(); got != first {
			t.Errorf("it is read within a minute: %+v", got)
		}
		time.Sleep(inputsTTL + time.Second)
		changed := i.ask()
		if changed.Version == first.Version || !changed.Written.Equal(at.Truncate(time.Second)) || i.api.Count("get secrets") != 3 {
			t.Errorf("%+v is as %+v", changed, first)
		}
		r, err := i.c.Request(t.Context(), i.volume, i.mountPoint)
		if err != nil || r.Inputs != changed {
			t.Errorf("a driver is called with %+v: %v", r.Inputs, err)
		}
	})
}

func TestInputsThatCannotBeRead(t *testing.T) {
	withInputs(t, func(t *testing.T, i inputsCase) {
		before := i.ask()
		i.api.BreakFor(apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "key", nil), "get", "secrets")
		r, err := i.c.Request(t.Context(), i.volume, i.mountPoint)
		if err == nil || r.Inputs.Version == "" || r.Inputs.Version == before.Version || len(r.Secrets) > 0 {
			t.Errorf("without a right: %+v, %v", r.Inputs, err)
		}
		i.api.BreakFor(kubetest.ErrRefused, "get", "secrets")
		if _, err := i.c.Request(t.Context(), i.volume, i.mountPoint); err == nil || strings.Contains(err.Error(), i.secret.Namespace) {
			t.Errorf("it names the Secret's namespace: %v", err)
		}
		i.api.Break(kubetest.ErrRefused)
		time.Sleep(inputsTTL + time.Second)
		if in, _ := i.c.Inputs(t.Context(), i.volume); in.Version != "" {
			t.Errorf("the API is away: %+v", in)
		}
	})
}

// Of a PersistentVolume only its mount options can be changed that a driver is told.
func TestInputsThatAreToldToADriver(t *testing.T) {
	withInputs(t, func(t *testing.T, i inputsCase) {
		written := i.ask().Written
		for _, tc := range []struct {
			fields string
			told   bool
		}{
			{`{"f:spec":{"f:persistentVolumeReclaimPolicy":{}}}`, false},
			{`{"f:spec":{"f:capacity":{"f:storage":{}},"f:volumeAttributesClassName":{},"f:nodeAffinity":{}}}`, false},
			{`{"f:spec":{"f:mountOptions":{}}}`, true},
		} {
			time.Sleep(inputsTTL + time.Second)
			i.pv.ManagedFields = wrote(tc.fields)
			i.api.Put(i.pv)
			if got := i.ask().Written; got.After(written) != tc.told {
				t.Errorf("%s: %s after %s", tc.fields, got, written)
			}
		}
	})
}

// A driver that wants tokens of pods gets them when it publishes, and not when it stages.
func TestRequestForADriverWithTokens(t *testing.T) {
	withInputs(t, func(t *testing.T, i inputsCase) {
		no := false
		i.api.Put(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: kubetest.DriverName}, Spec: storagev1.CSIDriverSpec{
			AttachRequired: &no, TokenRequests: []storagev1.TokenRequest{{Audience: "a"}},
		}})
		if _, err := i.c.Request(t.Context(), i.volume, i.mountPoint); err != nil {
			t.Error(err)
		}
	})
}
