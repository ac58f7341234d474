package integration

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
)

// cosi creates an object of COSI's.
func (p *person) cosi(version, kind, name string, spec, status map[string]any, finalizers ...any) {
	p.t.Helper()
	p.api.CreateCOSI(p.t, version, kind, p.namespace, map[string]any{
		"metadata": map[string]any{"name": name, "finalizers": finalizers}, "spec": spec, "status": status,
	})
}

// secret creates a Secret of which it is known when it last changed, or is not.
func (p *person) secret(name string, known bool) {
	p.t.Helper()
	s, err := p.api.Admin().CoreV1().Secrets(p.namespace).Create(p.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"COSI_S3_ACCESS_SECRET_KEY": harness.Canary},
	}, metav1.CreateOptions{})
	harness.Must(p.t, err)
	if known {
		return
	}
	s.ManagedFields = []metav1.ManagedFieldsEntry{{}} // which has the API forget them
	_, err = p.api.Admin().CoreV1().Secrets(p.namespace).Update(p.t.Context(), s, metav1.UpdateOptions{})
	harness.Must(p.t, err)
}

// TestWhyBucket has a person ask where buckets stand.
func TestWhyBucket(t *testing.T) {
	p := newPerson(t)
	p.forbidden = append(p.forbidden, harness.Canary)
	if text, code := p.ask("bucket/any"); code != 4 || !strings.Contains(text, "COSI is not installed") {
		t.Errorf("%d %s", code, text)
	}

	t.Run("v1alpha2", func(t *testing.T) {
		p.t = t
		const version = "v1alpha2"
		p.api.InstallCOSI(t, version)
		ready, failed := map[string]any{"readyToUse": true}, func(message string) map[string]any {
			return map[string]any{"readyToUse": false, "error": map[string]any{"time": "2026-11-24T00:00:00Z", "message": message}}
		}
		with := func(status map[string]any, key string, value any) map[string]any {
			status = maps.Clone(status)
			status[key] = value
			return status
		}
		access := func(claim, secret string) map[string]any {
			return map[string]any{"bucketClaims": []any{map[string]any{"bucketClaimName": claim, "accessSecretName": secret}}}
		}
		if text, code := p.ask("bucket/no-such-claim"); code != 3 {
			t.Errorf("%d %s", code, text)
		}

		p.cosi(version, "BucketClaim", "waits", map[string]any{}, map[string]any{"readyToUse": false})
		p.says("bucket/waits", "BucketClaimNotReady", "kubectl describe bucketclaim waits")

		p.cosi(version, "BucketClaim", "failed", map[string]any{}, with(failed("rpc error: code = InvalidArgument desc = no such region"), "boundBucketName", "bc-failed"))
		p.cosi(version, "Bucket", "bc-failed", map[string]any{}, failed("rpc error: code = ResourceExhausted desc = quota"))
		text := p.says("bucket/failed", "BucketFailed", "quota", "RESOURCE_EXHAUSTED: tried again by COSI's specification, given up by the stricter proposal")
		if !strings.Contains(text, "INVALID_ARGUMENT: given up by COSI's specification, given up by the stricter proposal") {
			t.Error(text)
		}

		p.cosi(version, "BucketClaim", "good", map[string]any{}, with(ready, "boundBucketName", "bc-good"))
		p.cosi(version, "Bucket", "bc-good", map[string]any{}, ready)
		if text, code := p.ask("bucket/good"); code != 0 || !strings.Contains(text, "bound to Bucket bc-good") {
			t.Errorf("%d %s", code, text)
		}
		p.cosi(version, "BucketAccess", "denied", access("good", "denied-creds"), failed("rpc error: code = OutOfRange desc = the policy is too large"))
		p.says("bucket/good", "BucketAccessFailed", "OUT_OF_RANGE: given up")

		// A person who may not read Secrets.
		p.cosi(version, "BucketAccess", "granted", access("good", "creds"), ready)
		p.says("bucket/good", "BucketAccessFailed")
		p.secret("creds", true)
		old := p.pod("old", p.here.Name, running, mountsSecret("creds"), startedAt(-time.Hour))
		fresh := p.pod("new", p.here.Name, running, mountsSecret("creds"), startedAt(time.Hour))
		env := p.pod("env", p.here.Name, running, startedAt(-time.Hour), func(pod *corev1.Pod) {
			pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "creds"}}}}
		})
		text = p.says("bucket/good", "BucketAccessFailed")
		if !strings.Contains(text, "SecretChanged: pod "+old.Name+" ") || strings.Contains(text, fresh.Name) || !strings.Contains(text, "SecretChanged: pod "+env.Name+" ") || !strings.Contains(text, "environment") {
			t.Error(text)
		}
		p.cosi(version, "BucketClaim", "unknown", map[string]any{}, with(ready, "boundBucketName", "bc-good"))
		p.cosi(version, "BucketAccess", "unknown", access("unknown", "unknown-creds"), ready)
		p.secret("unknown-creds", false)
		if text, code := p.ask("bucket/unknown"); code != 4 || !strings.Contains(text, "not known") {
			t.Errorf("%d %s", code, text)
		}

		p.cosi(version, "BucketClaim", "kept", map[string]any{}, with(ready, "boundBucketName", "bc-good"), "objectstorage.k8s.io/protection")
		p.api.Kubectl(t, "delete", "bucketclaims.objectstorage.k8s.io", "kept", "-n", p.namespace, "--wait=false")
		p.says("bucket/kept", "DeletePending", "objectstorage.k8s.io/protection", "Finalizers stay")

		p.api.Account(t, p.namespace, "tenant")
		p.api.Grant(t, p.namespace, "tenant", rbacv1.PolicyRule{APIGroups: []string{"objectstorage.k8s.io"}, Resources: []string{"bucketclaims", "bucketaccesses"}, Verbs: []string{"get", "list"}})
		admin := p.kubeconfig
		p.kubeconfig = p.api.Kubeconfig(t, p.namespace, "tenant")
		text = p.says("bucket/good", "BucketAccessFailed")
		for _, right := range []string{`cannot get resource "secrets"`, `cannot get resource "buckets"`} {
			if !strings.Contains(text, right) {
				t.Errorf("not said: %s\n%s", right, text)
			}
		}
		p.kubeconfig = admin
	})

	t.Run("v1alpha1", func(t *testing.T) {
		p.t = t
		const version = "v1alpha1"
		p.api.InstallCOSI(t, version)
		p.cosi(version, "BucketClaim", "good", map[string]any{}, map[string]any{"bucketReady": true, "bucketName": "bc-good"})
		p.cosi(version, "Bucket", "bc-good", map[string]any{}, map[string]any{"bucketReady": true})
		p.cosi(version, "BucketAccess", "granted", map[string]any{"bucketClaimName": "good", "credentialsSecretName": "old-creds"}, map[string]any{"accessGranted": true})
		p.says("bucket/good", "SecretMissing", "old-creds")
		p.secret("old-creds", true)
		if text, code := p.ask("bucket/good"); code != 0 {
			t.Errorf("%d %s", code, text)
		}
	})
}

func mountsSecret(secret string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "creds", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}})
	}
}

func startedAt(after time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(time.Now().Add(after))
	}
}
