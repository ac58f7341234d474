package integration

import (
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
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestBucketJobsAreRestricted has an API that enforces the restricted standard take the
// manifests of docs/buckets.md, and the pods that a controller makes of them.
func TestBucketJobsAreRestricted(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(harness.ModuleRoot(t), "docs/buckets.md"))
	harness.Must(t, err)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d manifests", len(blocks))
	}
	var job batchv1.Job
	var cron batchv1.CronJob
	harness.Must(t, yaml.UnmarshalStrict([]byte(blocks[0][1]), &job))
	harness.Must(t, yaml.UnmarshalStrict([]byte(blocks[1][1]), &cron))
	cron.Spec.JobTemplate.Spec = *job.Spec.DeepCopy()
	cron.Spec.JobTemplate.Spec.TTLSecondsAfterFinished = nil

	api := cluster.Start(t)
	namespace, err := api.Admin().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"},
	}}, metav1.CreateOptions{})
	harness.Must(t, err)
	api.Account(t, namespace.Name, "default")
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	_, err = api.Admin().BatchV1().Jobs(namespace.Name).Create(t.Context(), &job, strict)
	harness.Must(t, err)
	_, err = api.Admin().BatchV1().CronJobs(namespace.Name).Create(t.Context(), &cron, strict)
	harness.Must(t, err)

	for kind, spec := range map[string]corev1.PodSpec{"Job": job.Spec.Template.Spec, "CronJob": cron.Spec.JobTemplate.Spec.Template.Spec} {
		create := func(change func(*corev1.PodSpec)) error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "check-"}, Spec: *spec.DeepCopy()}
			change(&pod.Spec)
			_, err := api.Admin().CoreV1().Pods(namespace.Name).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
		if err := create(func(*corev1.PodSpec) {}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		// It does enforce the standard.
		for what, change := range map[string]func(*corev1.PodSpec){
			"no seccomp profile": func(s *corev1.PodSpec) { s.SecurityContext.SeccompProfile = nil },
			"root":               func(s *corev1.PodSpec) { s.SecurityContext.RunAsNonRoot = nil },
			"escalation":         func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
			"capabilities":       func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.Capabilities = nil },
		} {
			if err := create(change); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
				t.Errorf("%s with %s: %v", kind, what, err)
			}
		}
		// What the standard does not ask for.
		c := spec.Containers[0]
		if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken || c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
			t.Errorf("%s: a token, or a root filesystem to write to: %+v", kind, spec)
		}
		for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if c.Resources.Requests.Name(resource, "").IsZero() || c.Resources.Limits.Name(resource, "").IsZero() {
				t.Errorf("%s: no %s", kind, resource)
			}
		}
	}
}
