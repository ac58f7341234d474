package integration

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

const (
	// largePods is how many pods of about 1 MB there are, manyParts how many of them have
	// many volumes instead of one long argument: they take most memory once decoded.
	largePods, manyParts = 400, 10
	// largeJobs is how many jobs with manyLabels labels each there are.
	largeJobs, manyLabels = 24, 12_000
	// What the manifests give.
	serverMemory, controllerMemory = 512 << 20, 256 << 20
)

// TestLargePods has a tenant create pods of this node that are as large as the API takes
// them, and which are pending, or ended at once and stay. Server and controller start,
// and do their work, within the memory of their manifests.
func TestLargePods(t *testing.T) {
	m := newMember(t)
	tenant := m.api.Namespace(t)
	m.createLargePods(tenant)
	t.Run("node-healer", func(t *testing.T) {
		memory := harness.NewCgroup(t, "memory")
		memory.Limit(serverMemory)
		m.Binary = memory.Born(harness.Released(t))
		t.Cleanup(m.Stop) // before the cgroup goes
		m.Start()
		v := m.ruled("beside")
		v.Heals()
		m.forgets()
		v.Heals()
		m.within(t, memory, serverMemory)
	})
	t.Run("controller", func(t *testing.T) {
		memory := harness.NewCgroup(t, "memory")
		memory.Limit(controllerMemory)
		args := installJobs(t, m.api)
		controller := harness.StartControllerAs(t, memory.Born(harness.ControllerProgram(t)), args...)
		m.endJobs(tenant, 2) // at one time
		if log := controller.Log.String(); strings.Contains(log, "forbidden") {
			t.Error(log)
		}
		m.within(t, memory, controllerMemory)
		controller.Stop()
	})
}

// TestLargeJobs has a tenant create jobs with as many labels as the API takes. The controller ends
// them within a quarter of the memory of its manifest. A hundred of them keep an API on a busy
// machine from answering for so long that a controller's lease ends.
func TestLargeJobs(t *testing.T) {
	m := newMember(t)
	tenant := m.api.Namespace(t)
	args := installJobs(t, m.api)
	job := newJob(tenant, "", "")
	job.Labels = map[string]string{}
	for n := range manyLabels {
		job.Labels[fmt.Sprintf("%x", n)] = strings.Repeat("x", 32)
	}
	each(t, largeJobs, func(i int) {
		large := job.DeepCopy()
		large.Name = fmt.Sprintf("large-%03d", i)
		large.Spec.Target.PersistentVolumeClaim = large.Name // so they run at the same time
		cluster.Create(keeping{t}, m.api, large)
	})
	memory := harness.NewCgroup(t, "memory")
	memory.Limit(controllerMemory / 4)
	controller := harness.StartControllerAs(t, memory.Born(harness.ControllerProgram(t)), append(args, "--leader-elect=false")...)
	jobs := m.api.Dynamic().Resource(v1alpha1.GroupVersion.WithResource("volumehealjobs")).Namespace(tenant)
	for i := range largeJobs {
		awaitEnd(t, jobs, fmt.Sprintf("large-%03d", i))
	}
	m.within(t, memory, controllerMemory/4)
	controller.Stop()
}

// within sees that no process was ended for lack of memory.
func (m *member) within(t *testing.T, memory *harness.Cgroup, limit int64) {
	t.Helper()
	t.Logf("at most %d MiB of %d MiB", memory.Peak()>>20, limit>>20)
	if n := memory.Starved(); n > 0 {
		t.Errorf("%d processes found no memory within %d bytes", n, limit)
	}
}

// createLargePods makes the tenant's pods. Half of them ended as those do for which a node
// has no place. The API takes such pods from whoever may create pods.
func (m *member) createLargePods(namespace string) {
	m.T.Helper()
	var pods []*corev1.Pod
	for i := range largePods {
		pod := cluster.Pod(namespace, fmt.Sprintf("large-%03d", i), thisNode)
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
		if i%2 == 1 {
			pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods"}
		}
		if i < 2*manyParts && i%2 == 0 { // one after the other among those that have not ended
			for n := range 40_000 {
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("%x", n), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			}
		} else {
			pod.Spec.Containers[0].Args = []string{strings.Repeat("x", 1<<20)}
		}
		pods = append(pods, pod)
	}
	m.api.StorePods(m.T, namespace, pods...)
	harness.Eventually(m.T, "the API knows them", func() bool {
		list, err := m.api.Admin().CoreV1().Pods(namespace).List(m.T.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + pods[largePods-1].Name, ResourceVersion: "0"})
		return err == nil && len(list.Items) == 1
	})
}

// endJobs makes jobs at one time, each for a claim that a pod uses on a node that is not
// there, and waits for the controller to find that out.
func (m *member) endJobs(namespace string, n int) {
	t := m.T
	t.Helper()
	jobs := m.api.Dynamic().Resource(v1alpha1.GroupVersion.WithResource("volumehealjobs")).Namespace(namespace)
	for i := range n {
		name := fmt.Sprintf("%s-%d", namespace, i)
		v := cluster.Volume{PV: name, ID: name, Driver: harness.Driver, Namespace: namespace, Claim: name}
		m.api.Bind(t, v)
		cluster.Create(t, m.api, cluster.Pod(namespace, name, "node-none", v.Claim))
	}
	for i := range n {
		name := fmt.Sprintf("%s-%d", namespace, i)
		cluster.Create(t, m.api, newJob(namespace, name, name))
	}
	for i := range n {
		awaitEnd(t, jobs, fmt.Sprintf("%s-%d", namespace, i))
	}
}

// awaitEnd waits for a job's result.
func awaitEnd(t testing.TB, jobs dynamic.ResourceInterface, name string) {
	t.Helper()
	harness.Eventually(t, "the job has ended", func() bool {
		job, err := jobs.Get(t.Context(), name, metav1.GetOptions{})
		harness.Must(t, err)
		status, _ := job.Object["status"].(map[string]any)
		return status["result"] != nil
	})
}
