package controller

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ownIdentity is the controller's.
var ownIdentity = Identity{Namespace: "gateways", Account: "controller", Pod: "pod", PodUID: "pod-uid"}

// world is a cluster in memory with nodes that answer as they are told.
type world struct {
	t          *testing.T
	api        client.Client
	nodes      *fakeNodes
	events     *events.FakeRecorder
	reconciler *Reconciler
}

// newWorld has a claim, its volume, and these objects. Its context ends with the test.
func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	claim, pv := boundClaim()
	w := &world{
		t: t, nodes: &fakeNodes{}, events: events.NewFakeRecorder(100),
		api: fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.VolumeHealJob{}).
			WithObjects(append(objects, claim, pv)...).Build(),
	}
	w.restart()
	return w
}

// restart is another process: it knows what the API has.
func (w *world) restart() {
	w.t.Helper()
	r := New(Config{
		Reader: notEndedPods(w.api), Writer: w.api, Events: w.events, Metrics: prometheus.NewRegistry(),
		KubeletRoot: "/var/lib/kubelet", ConfigMap: "settings", MaxCalls: 8, MaxCallsPerNode: 1,
		Gateways: Gateways{Namespace: "gateways", Server: "server", Self: ownIdentity},
	})
	r.nodes = w.nodes
	w.reconciler = r
}

// notEndedPods selects by phase, which the fake does not.
func notEndedPods(api client.Client) client.Client {
	return interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			var all client.ListOptions
			all.ApplyOptions(options)
			by := all.FieldSelector
			all.FieldSelector = nil
			err := api.List(ctx, list, &all)
			if pods, is := list.(*corev1.PodList); is && by != nil {
				pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
					return !by.Matches(fields.Set{"status.phase": string(p.Status.Phase), "spec.nodeName": p.Spec.NodeName})
				})
			}
			return err
		},
	})
}

func boundClaim() (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "claim-uid"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "claim-uid"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "driver", VolumeHandle: "handle", FSType: "ext4", VolumeAttributes: map[string]string{"pool": "a"},
			}},
		},
	}
	return claim, pv
}

// podOn is a running pod that uses the claim.
func podOn(node, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")},
		Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func aJob(name string) *v1alpha1.VolumeHealJob {
	return &v1alpha1.VolumeHealJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Generation: 1},
		Spec:       v1alpha1.VolumeHealJobSpec{Target: v1alpha1.TargetSpec{PersistentVolumeClaim: "claim"}, Mode: v1alpha1.ModeHeal},
	}
}

func (w *world) job(name string) *v1alpha1.VolumeHealJob {
	w.t.Helper()
	job := &v1alpha1.VolumeHealJob{}
	must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, job))
	return job
}

func (w *world) reconcile(name string) ctrl.Result {
	w.t.Helper()
	result, err := w.reconciler.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}})
	must(w.t, err)
	return result
}

// run reconciles a job until it has ended, as often as it asks for.
func (w *world) run(name string) *v1alpha1.VolumeHealJob {
	w.t.Helper()
	for range 1000 {
		result := w.reconcile(name)
		if job := w.job(name); job.Status.Result != "" {
			return job
		}
		time.Sleep(result.RequeueAfter)
	}
	w.t.Fatalf("it never ends: %+v", w.job(name).Status)
	return nil
}

// asked is one call to a node.
type asked struct {
	node, path string
	at         time.Time
}

// fakeNodes answers in the order of answers, and the last one again and again; without
// any the volume is healthy.
type fakeNodes struct {
	mu      sync.Mutex
	calls   []asked
	answers []outcome
	// during runs in each call.
	during func(node string)
}

func (f *fakeNodes) call(_ context.Context, node string, _ v1alpha1.Mode, req *healerpb.NodeHealerRequest, _ time.Duration) outcome {
	f.mu.Lock()
	n := len(f.calls)
	f.calls = append(f.calls, asked{node, req.GetVolumePath(), time.Now()})
	f.mu.Unlock()
	if f.during != nil {
		f.during(node)
	}
	if len(f.answers) == 0 {
		return answered(false, "healthy: "+node)
	}
	return f.answers[min(n, len(f.answers)-1)]
}

// waits are the seconds before each call but the first.
func (f *fakeNodes) waits() []int {
	var all []int
	for i := 1; i < len(f.calls); i++ {
		all = append(all, int(f.calls[i].at.Sub(f.calls[i-1].at).Seconds()))
	}
	return all
}

func condition(job *v1alpha1.VolumeHealJob, kind string) metav1.Condition {
	for _, c := range job.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}
