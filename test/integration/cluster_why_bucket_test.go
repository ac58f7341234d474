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
		p.api.InstallCOSI(t, "v1alpha2")
		p.asksForClaims()
		p.asksForAccesses()
		p.asksWithoutRights()
	})
	t.Run("v1alpha1", func(t *testing.T) {
		p.t = t
		p.api.InstallCOSI(t, "v1alpha1")
		p.asksForOldKinds()
	})
}

// What COSI says of its objects, from v1alpha2 on.

var cosiReady = map[string]any{"readyToUse": true}

func cosiFailed(message string) map[string]any {
	return map[string]any{"readyToUse": false, "error": map[string]any{"time": "2026-11-24T00:00:00Z", "message": message}}
}

func cosiBound(status map[string]any, bucket string) map[string]any {
	status = maps.Clone(status)
	status["boundBucketName"] = bucket
	return status
}

func cosiAccess(claim, secret string) map[string]any {
	return map[string]any{"bucketClaims": []any{map[string]any{"bucketClaimName": claim, "accessSecretName": secret}}}
}

func (p *person) asksForClaims() {
	const version = "v1alpha2"
	none := map[string]any{}
	if text, code := p.ask("bucket/no-such-claim"); code != 3 {
		p.t.Errorf("%d %s", code, text)
	}

	p.cosi(version, "BucketClaim", "waits", none, map[string]any{"readyToUse": false})
	p.says("bucket/waits", "BucketClaimNotReady", "kubectl describe bucketclaim waits")

	p.cosi(version, "BucketClaim", "failed", none, cosiBound(cosiFailed("rpc error: code = InvalidArgument desc = no such region"), "bc-failed"))
	p.cosi(version, "Bucket", "bc-failed", none, cosiFailed("rpc error: code = ResourceExhausted desc = quota"))
	text := p.says("bucket/failed", "BucketFailed", "quota", "RESOURCE_EXHAUSTED: tried again by COSI's specification, given up by the stricter proposal")
	if !strings.Contains(text, "INVALID_ARGUMENT: given up by COSI's specification, given up by the stricter proposal") {
		p.t.Error(text)
	}

	p.cosi(version, "BucketClaim", "good", none, cosiBound(cosiReady, "bc-good"))
	p.cosi(version, "Bucket", "bc-good", none, cosiReady)
	if text, code := p.ask("bucket/good"); code != 0 || !strings.Contains(text, "bound to Bucket bc-good") {
		p.t.Errorf("%d %s", code, text)
	}

	p.cosi(version, "BucketClaim", "kept", none, cosiBound(cosiReady, "bc-good"), "objectstorage.k8s.io/protection")
	p.api.Kubectl(p.t, "delete", "bucketclaims.objectstorage.k8s.io", "kept", "-n", p.namespace, "--wait=false")
	p.says("bucket/kept", "DeletePending", "objectstorage.k8s.io/protection", "Finalizers stay")
}

func (p *person) asksForAccesses() {
	const version = "v1alpha2"
	p.cosi(version, "BucketAccess", "denied", cosiAccess("good", "denied-creds"), cosiFailed("rpc error: code = OutOfRange desc = the policy is too large"))
	p.says("bucket/good", "BucketAccessFailed", "OUT_OF_RANGE: given up")

	p.cosi(version, "BucketAccess", "granted", cosiAccess("good", "creds"), cosiReady)
	p.says("bucket/good", "BucketAccessFailed")
	p.secret("creds", true)
	old := p.pod("old", p.here.Name, running, mountsSecret("creds"), startedAt(-time.Hour))
	fresh := p.pod("new", p.here.Name, running, mountsSecret("creds"), startedAt(time.Hour))
	env := p.pod("env", p.here.Name, running, startedAt(-time.Hour), func(pod *corev1.Pod) {
		pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "creds"}}}}
	})
	text := p.says("bucket/good", "BucketAccessFailed")
	for _, also := range []string{"SecretChanged: pod " + old.Name + " ", "SecretChanged: pod " + env.Name + " ", "environment"} {
		if !strings.Contains(text, also) || strings.Contains(text, fresh.Name) {
			p.t.Errorf("%q: %s", also, text)
		}
	}

	p.cosi(version, "BucketClaim", "unknown", map[string]any{}, cosiBound(cosiReady, "bc-good"))
	p.cosi(version, "BucketAccess", "unknown", cosiAccess("unknown", "unknown-creds"), cosiReady)
	p.secret("unknown-creds", false)
	if text, code := p.ask("bucket/unknown"); code != 4 || !strings.Contains(text, "not known") {
		p.t.Errorf("%d %s", code, text)
	}
}

func (p *person) asksWithoutRights() {
	p.api.Account(p.t, p.namespace, "tenant")
	p.api.Grant(p.t, p.namespace, "tenant", rbacv1.PolicyRule{APIGroups: []string{"objectstorage.k8s.io"}, Resources: []string{"bucketclaims", "bucketaccesses"}, Verbs: []string{"get", "list"}})
	admin := p.kubeconfig
	defer func() { p.kubeconfig = admin }()
	p.kubeconfig = p.api.Kubeconfig(p.t, p.namespace, "tenant")
	text := p.says("bucket/good", "BucketAccessFailed")
	for _, right := range []string{`cannot get resource "secrets"`, `cannot get resource "buckets"`} {
		if !strings.Contains(text, right) {
			p.t.Errorf("not said: %s\n%s", right, text)
		}
	}
}

func (p *person) asksForOldKinds() {
	const version = "v1alpha1"
	p.cosi(version, "BucketClaim", "good", map[string]any{}, map[string]any{"bucketReady": true, "bucketName": "bc-good"})
	p.cosi(version, "Bucket", "bc-good", map[string]any{}, map[string]any{"bucketReady": true})
	p.cosi(version, "BucketAccess", "granted", map[string]any{"bucketClaimName": "good", "credentialsSecretName": "old-creds"}, map[string]any{"accessGranted": true})
	p.says("bucket/good", "SecretMissing", "old-creds")
	p.secret("old-creds", true)
	if text, code := p.ask("bucket/good"); code != 0 {
		p.t.Errorf("%d %s", code, text)
	}
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
