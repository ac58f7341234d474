package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// A PersistentVolume and its Secret are read once a minute, and told apart from what they were.
func TestInputs(t *testing.T) {
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
		of := healer.Case{Volume: healer.Volume{ID: kubetest.Handle}, Driver: kubetest.DriverName, MountPoints: []healer.MountPoint{step.MountPoint}}
		ask := func() healer.StageInputs {
			t.Helper()
			in, err := c.Inputs(t.Context(), of)
			if err != nil {
				t.Fatal(err)
			}
			return in
		}
		first := ask()
		if ask() != first || first.Version == "" || api.Count("get secrets") != 1 {
			t.Errorf("%+v after %d reads", first, api.Count("get secrets"))
		}
		at := metav1.Now()
		wrote := func(fields string) []metav1.ManagedFieldsEntry {
			return []metav1.ManagedFieldsEntry{{Time: &at, FieldsV1: metav1.NewFieldsV1(fields)}}
		}
		annotates := wrote(`{"f:metadata":{"f:annotations":{}}}`)
		secret.Annotations, secret.ManagedFields = map[string]string{"at": "now"}, annotates
		d.pv.Annotations, d.pv.ManagedFields = map[string]string{"at": "now"}, annotates
		api.Put(secret, d.pv)
		time.Sleep(inputsTTL + time.Second)
		if got := ask(); got != first || api.Count("get secrets") != 2 {
			t.Errorf("an annotation is a change: %+v, not %+v", got, first)
		}
		at = metav1.Now()
		secret.Data, secret.ManagedFields = map[string][]byte{"key": []byte("new")}, wrote(`{"f:data":{"f:key":{}}}`)
		api.Put(secret)
		if got := ask(); got != first {
			t.Errorf("it is read within a minute: %+v", got)
		}
		time.Sleep(inputsTTL + time.Second)
		changed := ask()
		if changed.Version == first.Version || !changed.Written.Equal(at.Truncate(time.Second)) || api.Count("get secrets") != 3 {
			t.Errorf("%+v is as %+v", changed, first)
		}
		r, err := c.Request(t.Context(), of, step.MountPoint)
		if err != nil || r.Inputs != changed {
			t.Errorf("a driver is called with %+v: %v", r.Inputs, err)
		}

		api.BreakFor(apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "key", nil), "get", "secrets")
		r, err = c.Request(t.Context(), of, step.MountPoint)
		if err == nil || r.Inputs.Version == "" || r.Inputs.Version == changed.Version || len(r.Secrets) > 0 {
			t.Errorf("without a right: %+v, %v", r.Inputs, err)
		}
		api.Break(kubetest.ErrRefused)
		time.Sleep(inputsTTL + time.Second)
		if in, _ := c.Inputs(t.Context(), of); in.Version != "" {
			t.Errorf("the API is away: %+v", in)
		}
	})
}
