package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// controllerName is what the shipped manifests call the Deployment and its account.
const controllerName = "node-healer-controller"

// installJobs brings the kind and the controller's roles, and returns the arguments of a
// controller that has what its pod would have.
func installJobs(t *testing.T, api *cluster.Cluster) (args []string) {
	t.Helper()
	harness.Must(t, v1alpha1.AddToScheme(scheme.Scheme))
	api.Apply(t, "deploy/default")
	api.Kubectl(t, "wait", "--for=condition=Established", "--timeout=5m", "crd/volumehealjobs.node-healer.csi-addons.io")
	pod, kubeconfig := newControllerPod(t, api)
	return []string{"--kubeconfig=" + kubeconfig, "--pod-name=" + pod.Name, "--pod-uid=" + string(pod.UID)}
}

// newControllerPod makes a pod of the controller's, and returns its kubeconfig.
func newControllerPod(t *testing.T, api *cluster.Cluster) (pod *corev1.Pod, kubeconfig string) {
	t.Helper()
	pod = cluster.Pod(ownNamespace, "", "")
	pod.GenerateName, pod.Spec.ServiceAccountName = controllerName+"-", controllerName
	pod = cluster.Create(t, api, pod)
	return pod, api.PodKubeconfig(t, pod)
}

// newJob is a job that tries each node once.
func newJob(namespace, name, claim string) *v1alpha1.VolumeHealJob {
	return &v1alpha1.VolumeHealJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VolumeHealJobSpec{
			Target: v1alpha1.TargetSpec{PersistentVolumeClaim: claim}, Mode: v1alpha1.ModeHeal, BackoffLimit: ptr.To[int32](0),
		},
	}
}

// jobs is a node whose volumes are healed by jobs.
type jobs struct {
	*registered
	controller *harness.Controller
	// args are the controller's.
	args []string
}

func newJobs(t *testing.T) *jobs {
	t.Helper()
	j := &jobs{registered: newRegistered(t)}
	j.args = append(installJobs(t, j.api), "--kubelet-root="+j.Kubelet)
	j.newPod(func(p *corev1.Pod) { p.Status.PodIP = "127.0.0.1" })
	j.start()
	j.appears("")
	j.controller = harness.StartController(t, j.args...)
	return j
}

// restart has another controller take over, which searches for sick volumes at once.
func (j *jobs) restart() {
	j.T.Helper()
	j.controller.Stop()
	j.controller = harness.StartController(j.T, j.args...)
}

// run runs a job to its end, and once more where only a busy machine kept its node from a heal.
func (j *jobs) run(job *v1alpha1.VolumeHealJob) *v1alpha1.VolumeHealJob {
	j.T.Helper()
	for begun := time.Now(); ; {
		ended := j.ended(cluster.Create(j.T, j.api, job))
		nodes := ended.Status.Nodes
		if job.Spec.Mode != v1alpha1.ModeHeal || len(nodes) != 1 || !j.IsTransient(nodes[0].Message) || time.Since(begun) > harness.Patience {
			return ended
		}
		j.T.Log(nodes[0].Message)
		cluster.Delete(j.T, j.api, ended)
	}
}

func (j *jobs) ended(job *v1alpha1.VolumeHealJob) *v1alpha1.VolumeHealJob {
	j.T.Helper()
	defer func() {
		if j.T.Failed() {
			j.T.Logf("%+v\n%s", job.Status, j.controller.Log)
		}
	}()
	harness.Eventually(j.T, "the job has ended", func() bool {
		raw, err := j.api.Dynamic().Resource(v1alpha1.GroupVersion.WithResource("volumehealjobs")).Namespace(job.Namespace).Get(j.T.Context(), job.Name, metav1.GetOptions{})
		harness.Must(j.T, err)
		job = &v1alpha1.VolumeHealJob{}
		harness.Must(j.T, runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, job))
		return job.Status.Result != ""
	})
	return job
}

// reports sees that a job ended with a reason, in its condition and in an event.
func (j *jobs) reports(job *v1alpha1.VolumeHealJob, want v1alpha1.Result, reason, says string) {
	j.T.Helper()
	kind := v1alpha1.ConditionComplete
	if want == v1alpha1.ResultFailed {
		kind = v1alpha1.ConditionFailed
	}
	if job.Status.Result != want || !slices.ContainsFunc(job.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == kind && c.Status == metav1.ConditionTrue && c.Reason == reason && strings.Contains(c.Message, says)
	}) {
		j.T.Errorf("want %s, %s: %s; got %+v\n%s", want, reason, says, job.Status, j.controller.Log)
	}
	harness.Eventually(j.T, "an event says "+reason, func() bool {
		events, err := j.api.Admin().EventsV1().Events(job.Namespace).List(j.T.Context(), metav1.ListOptions{FieldSelector: "regarding.name=" + job.Name})
		harness.Must(j.T, err)
		return slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool { return e.Reason == reason })
	})
}

// used makes a claim that a pod on a node uses; no node has such a volume.
func (j *jobs) used(name, node string) (claim string, pod *corev1.Pod) {
	j.T.Helper()
	v := cluster.Volume{PV: "pv-" + name, ID: name, Driver: harness.Driver, Namespace: j.namespace, Claim: "data-" + name}
	j.api.Bind(j.T, v)
	return v.Claim, cluster.Create(j.T, j.api, cluster.Pod(j.namespace, "app-"+name, node, v.Claim))
}
