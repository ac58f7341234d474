package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/test/harness"
)

const (
	bucketNamespace = "tenant"
	bucketSecret    = "my-bucket-creds" // as docs/buckets.md calls it
)

// checksItsBucket has a tenant check a bucket of COSI's by the Job of docs/buckets.md, while
// its key is good, after it was revoked, and after the Secret was rotated under a running pod.
func checksItsBucket(t *testing.T, n *Node) {
	t.Helper()
	server := harness.NewS3At(t, nodeIP, "first", "second")
	n.Cluster.Kubectl(t, "create", "namespace", bucketNamespace)
	n.Cluster.Kubectl(t, "label", "namespace", bucketNamespace, "pod-security.kubernetes.io/enforce=restricted")
	const version = "v1alpha2"
	n.Cluster.InstallCOSI(t, version)
	ready := func(name string, spec, status map[string]any) map[string]any {
		status["readyToUse"] = true
		return map[string]any{"metadata": map[string]any{"name": name}, "spec": spec, "status": status}
	}
	n.Cluster.CreateCOSI(t, version, "Bucket", "", ready("bc-1", map[string]any{}, map[string]any{}))
	n.Cluster.CreateCOSI(t, version, "BucketClaim", bucketNamespace, ready("photos", map[string]any{}, map[string]any{"boundBucketName": "bc-1"}))
	n.Cluster.CreateCOSI(t, version, "BucketAccess", bucketNamespace, ready("photos", map[string]any{
		"bucketClaims": []any{map[string]any{"bucketClaimName": "photos", "accessSecretName": bucketSecret}},
	}, map[string]any{}))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bucketSecret}, StringData: map[string]string{
		"COSI_PROTOCOL": "S3", "COSI_S3_ENDPOINT": server.URL(), "COSI_S3_REGION": "us-east-1", "COSI_S3_BUCKET_ID": harness.S3Bucket,
		"COSI_S3_ADDRESSING_STYLE": "path", "COSI_S3_ACCESS_KEY_ID": "first", "COSI_S3_ACCESS_SECRET_KEY": harness.Canary,
	}}
	_, err := n.Cluster.Admin().CoreV1().Secrets(bucketNamespace).Create(t.Context(), secret, metav1.CreateOptions{})
	harness.Must(t, err)

	job := n.bucketJob()
	app := n.bucketApp(job.Spec.Template.Spec)
	n.bucketSays(job, "healthy: 200, a list")
	server.Revoke("first")
	n.bucketSays(job, "CredentialsRefused")
	why := func() string {
		out, err := run(programs+"/healerctl", "why", "bucket/photos", "--namespace="+bucketNamespace, "--kubeconfig="+n.Cluster.AdminKubeconfig())
		if err != nil {
			out = err.Error()
		}
		if strings.Contains(out, harness.Canary) {
			t.Errorf("a secret is shown: %s", out)
		}
		return out
	}
	if out := why(); !strings.Contains(out, "nothing was found") {
		t.Error(out)
	}

	n.Cluster.Kubectl(t, "patch", "secret", bucketSecret, "--namespace="+bucketNamespace, `--patch={"stringData":{"COSI_S3_ACCESS_KEY_ID":"second"}}`)
	if out := why(); !strings.Contains(out, "\nSecretChanged: pod "+app.Name+" ") {
		t.Error(out)
	}
	n.bucketSays(job, "healthy: 200, a list")
	// A change of the pod has kubelet look for that of the Secret at once.
	n.Cluster.Kubectl(t, "annotate", "pod", app.Name, "--namespace="+bucketNamespace, "look=now")
	eventually(t, "the running pod has the new key", func() error {
		key, err := os.ReadFile(filepath.Join(kubeletRoot, "pods", string(app.UID), "volumes/kubernetes.io~secret/bucket/COSI_S3_ACCESS_KEY_ID"))
		if err == nil && string(key) != "second" {
			err = fmt.Errorf("it has %q", key)
		}
		return err
	})
}

// bucketJob is the Job of docs/buckets.md with this node's image.
func (n *Node) bucketJob() *batchv1.Job {
	n.T.Helper()
	page, err := os.ReadFile(filepath.Join(harness.ModuleRoot(n.T), "docs/buckets.md"))
	harness.Must(n.T, err)
	manifest := regexp.MustCompile("(?s)```yaml\n(.*?kind: Job.*?)```").FindSubmatch(page)
	job := &batchv1.Job{}
	harness.Must(n.T, yaml.UnmarshalStrict(manifest[1], job))
	job.Name, job.GenerateName = "", job.Name+"-"
	job.Spec.Template.Spec.Containers[0].Image = healerImage
	job.Spec.Template.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
	return job
}

// bucketApp runs a pod that has the bucket's Secret, and reads it never again.
func (n *Node) bucketApp(spec corev1.PodSpec) *corev1.Pod {
	n.T.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Spec: *spec.DeepCopy()}
	pod.Spec.Containers[0].Image, pod.Spec.Containers[0].Command = busyboxImage, []string{"/bin/busybox", "sleep", "100000"}
	pod.Spec.TerminationGracePeriodSeconds = new(int64)
	pod, err := n.Cluster.Admin().CoreV1().Pods(bucketNamespace).Create(n.T.Context(), pod, metav1.CreateOptions{})
	harness.Must(n.T, err)
	eventually(n.T, "the pod with the Secret runs", func() error {
		now, err := n.Cluster.Admin().CoreV1().Pods(bucketNamespace).Get(n.T.Context(), pod.Name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.PodRunning {
			err = errors.New(string(now.Status.Phase))
		}
		return err
	})
	return pod
}

// bucketSays runs a Job to its end, and sees what it said.
func (n *Node) bucketSays(job *batchv1.Job, want string) {
	n.T.Helper()
	made, err := n.Cluster.Admin().BatchV1().Jobs(bucketNamespace).Create(n.T.Context(), job, metav1.CreateOptions{})
	harness.Must(n.T, err)
	eventually(n.T, "the Job says "+want, func() error {
		logs, err := filepath.Glob(filepath.Join(logDir, "pods", bucketNamespace+"_"+made.Name+"-*", "check", "*.log"))
		if err != nil || len(logs) == 0 {
			return errors.Join(errors.New("it has said nothing"), err)
		}
		said, err := os.ReadFile(logs[0])
		if strings.Contains(string(said), harness.Canary) {
			n.T.Errorf("a secret is shown: %s", said)
		}
		if err == nil && !strings.Contains(string(said), want) {
			err = errors.New(string(said))
		}
		return err
	})
}
