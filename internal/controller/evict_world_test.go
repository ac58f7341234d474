package controller

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// evictWorld is a node with an ext4 that shut itself down, and two pods of a ReplicaSet
// that use it.
type evictWorld struct {
	*world
	ctx  context.Context
	node *sickNode
	// name is the job's.
	name string
	// refuse is what the API says to evictions of pods, and patches of nodes, by these names.
	refuse map[string]error
	// lost is what evictions of pods by these names are answered with once these were evicted.
	lost map[string]error
	// stays is true where the volume stays staged: no taint may stand.
	stays bool
	// evicted are the pods that went, dryRuns how many evictions were only tried.
	evicted []string
	dryRuns int
	// writes counts writes; the one with the number dies, or the one after it where after
	// is true, ends the process.
	mu     sync.Mutex
	writes int
	dies   int
	after  bool
	dead   bool
	told   *events.FakeRecorder
	// kubelet runs after each write.
	kubelet func()
}

var errDead = errors.New("the process has ended")

// sickNode is the node that is asked.
type sickNode struct {
	found []finding
	// others are found at other volumes; silentOthers replaces the answer.
	others       []finding
	silentOthers *outcome
	staged       bool
	// answer replaces the answer to a check, staging that at the staging path alone.
	answer, staging *outcome
	calls           int
	// during runs in each call.
	during func()
}

func (n *sickNode) call(_ context.Context, _ string, mode v1alpha1.Mode, req *healerpb.NodeHealerRequest, _ time.Duration) outcome {
	n.calls++
	if n.during != nil {
		n.during()
	}
	switch {
	case mode == v1alpha1.ModeHeal:
		panic("a heal was asked for")
	case n.answer != nil:
		return *n.answer
	case req.GetVolumeId() != "handle" && n.silentOthers != nil:
		return *n.silentOthers
	case req.GetVolumePath() == "" && n.staging != nil:
		return *n.staging
	case req.GetVolumePath() == "" && !n.staged:
		return hindered(ReasonVolumeNotFound, final, "volume_path: does not exist on this node")
	}
	found := n.found
	if req.GetVolumeId() != "handle" {
		found = n.others
	}
	if len(found) == 0 {
		return answered(false, "healthy")
	}
	o := answered(true, "abnormal")
	o.found = found
	return o
}

const taintKey = clustersettings.TaintPrefix + "claim-uid"

var shutdown = finding{reason: "FilesystemShutdown", message: "staging: the filesystem was shut down", newStage: true}

func theNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "theirs", Effect: corev1.TaintEffectNoSchedule}}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}}},
	}
}

func ownedBy(kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(name + "-uid"), Controller: ptr.To(true)}}
}

// appPod is a pod of the ReplicaSet, which kubelet keeps until it has ended.
func appPod(node, name string) *corev1.Pod {
	pod := podOn(node, name)
	pod.OwnerReferences, pod.Finalizers = ownedBy("ReplicaSet", "app"), []string{"example.com/kubelet"}
	return pod
}

func daemonObjects() []client.Object {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "driver-x", OwnerReferences: ownedBy("DaemonSet", "driver")},
		Spec: corev1.PodSpec{NodeName: "node-1", Volumes: []corev1.Volume{{Name: "p", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins/driver/"},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "driver"}}
	set.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return []client.Object{pod, set}
}

func theSettings(evict string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gateways", Name: "settings"}, Data: map[string]string{"mode": "heal", "evict": evict}}
}

func theLedger() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gateways", Name: ledgerName}}
}

// writeLedger has somebody else write the ledger.
func (w *evictWorld) writeLedger(text string) {
	w.t.Helper()
	w.update("gateways", ledgerName, &corev1.ConfigMap{}, func(o client.Object) { o.(*corev1.ConfigMap).Data = map[string]string{ledgerKey: text} })
}

func evictJob(name string) *v1alpha1.VolumeHealJob {
	job := aJob(name)
	job.Spec.Mode = v1alpha1.ModeEvict
	return job
}

func newEvictWorld(t *testing.T, objects ...client.Object) *evictWorld {
	t.Helper()
	objects = append(objects, evictJob("job"), theLedger(), theNode("node-1"), theSettings("drivers: [driver]\nafter: 0s\n"),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "driver"}},
		appPod("node-1", "a"), appPod("node-1", "b"))
	w := &evictWorld{ctx: t.Context(), name: "job", world: newWorld(t, append(objects, daemonObjects()...)...), node: &sickNode{found: []finding{shutdown}, staged: true}}
	w.restartEvict()
	return w
}

// restartEvict is another process.
func (w *evictWorld) restartEvict() {
	w.t.Helper()
	w.dead = false
	api := w.interceptWrites(w.api)
	w.told = events.NewFakeRecorder(1000)
	r := New(Config{
		Reader: notEndedPods(w.api), Writer: api, Events: w.told, Metrics: prometheus.NewRegistry(),
		KubeletRoot: "/var/lib/kubelet", ConfigMap: "settings", MaxCalls: 8, MaxCallsPerNode: 1,
		Gateways: Gateways{Namespace: "gateways", Server: "server", Self: ownIdentity},
	})
	r.nodes = w.node
	w.reconciler = r
}

// write counts a write, and is where a process may end.
func (w *evictWorld) write(do func() error) error {
	w.mu.Lock()
	w.writes++
	now := w.dies != 0 && w.writes == w.dies
	w.dead = w.dead || now
	dead := w.dead && (!now || !w.after)
	w.mu.Unlock()
	if dead {
		return errDead
	}
	err := do()
	if now {
		return errDead
	}
	return err
}

func (w *evictWorld) interceptWrites(api client.Client) client.Client {
	return interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := w.refuse[o.GetName()]; err != nil {
				return err
			}
			return w.write(func() error { return api.Patch(ctx, o, patch, options...) })
		},
		Create: func(ctx context.Context, api client.WithWatch, o client.Object, options ...client.CreateOption) error {
			return w.write(func() error { return api.Create(ctx, o, options...) })
		},
		Update: func(ctx context.Context, api client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return w.write(func() error { return api.Update(ctx, o, options...) })
		},
		SubResourcePatch: func(ctx context.Context, api client.Client, sub string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			return w.write(func() error { return api.SubResource(sub).Patch(ctx, o, patch, options...) })
		},
		SubResourceCreate: func(ctx context.Context, api client.Client, sub string, o, body client.Object, _ ...client.SubResourceCreateOption) error {
			eviction, is := body.(*policyv1.Eviction)
			if !is || sub != "eviction" {
				w.t.Errorf("creates %s of %s", sub, o.GetName())
			}
			if err := w.refuse[o.GetName()]; err != nil {
				return err
			}
			pre, now := eviction.DeleteOptions.Preconditions, &corev1.Pod{}
			if pre == nil || pre.UID == nil || *pre.UID != o.GetUID() {
				w.t.Errorf("evicts any pod of the name %s", o.GetName())
			}
			if err := api.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
				return err
			}
			if len(eviction.DeleteOptions.DryRun) > 0 {
				w.dryRuns++
				return nil
			}
			return w.write(func() error {
				if (w.taintValue() == "") != w.stays {
					w.t.Errorf("pod %s is evicted with the taint %q", o.GetName(), w.taintValue())
				}
				w.evicted = append(w.evicted, o.GetName())
				return errors.Join(api.Delete(ctx, o), w.lost[o.GetName()])
			})
		},
	})
}

func (w *evictWorld) theNode() *corev1.Node {
	w.t.Helper()
	node := &corev1.Node{}
	must(w.t, w.api.Get(w.ctx, client.ObjectKey{Name: "node-1"}, node))
	return node
}

// taintValue is that of our taint; empty: the node has none.
func (w *evictWorld) taintValue() string {
	w.t.Helper()
	for _, t := range w.theNode().Spec.Taints {
		if t.Key == taintKey {
			return t.Value
		}
	}
	return ""
}

// kubeletEnds has the pods end that were evicted, and unstages the volume after the last.
func (w *evictWorld) kubeletEnds() {
	w.t.Helper()
	pods := &corev1.PodList{}
	must(w.t, w.api.List(w.t.Context(), pods, client.InNamespace("ns")))
	left := 0
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp == nil {
			left++
			continue
		}
		pod.Finalizers = nil
		must(w.t, w.api.Update(w.t.Context(), pod))
	}
	if left == 0 && w.node.staged {
		w.node.staged = false
		w.node.found = nil // the next stage is good
	}
}

// scheduler brings the new pod once the taint is gone.
func (w *evictWorld) scheduler() {
	w.t.Helper()
	pods := &corev1.PodList{}
	must(w.t, w.api.List(w.t.Context(), pods, client.InNamespace("ns")))
	if len(pods.Items) == 0 && w.taintValue() == "" {
		must(w.t, w.api.Create(w.t.Context(), appPod("node-1", "new")))
		w.node.staged = true
	}
}

func (w *evictWorld) step() (ctrl.Result, error) {
	return w.reconciler.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: w.name}})
}

func (w *evictWorld) pass() error {
	_, err := w.step()
	return err
}

// runs reconciles until the job has ended; kubelet and scheduler work between the steps.
func (w *evictWorld) runs() *v1alpha1.VolumeHealJob {
	w.t.Helper()
	for range 2000 {
		result, err := w.step()
		switch {
		case w.dead:
			w.restartEvict()
			w.dies = 0
			must(w.t, w.reconciler.sweep(w.t.Context()))
		case err != nil:
			w.t.Fatal(err)
		}
		if job := w.job(w.name); job.Status.Result != "" {
			return job
		}
		if w.kubelet != nil {
			w.kubelet()
		}
		time.Sleep(result.RequeueAfter)
	}
	w.t.Fatalf("it never ends: %+v", w.job(w.name).Status)
	return nil
}

// clean fails the test unless no taint of ours and no open entry is left, and others' are.
func (w *evictWorld) clean() {
	w.t.Helper()
	all, _, err := w.reconciler.readLedger(w.t.Context())
	must(w.t, err)
	for _, e := range all {
		if e.open() {
			w.t.Errorf("an entry is open: %+v", e)
		}
	}
	if taints := w.theNode().Spec.Taints; len(taints) != 1 || taints[0].Key != "theirs" {
		w.t.Errorf("the taints are %+v", taints)
	}
}

// says fails the test unless the job ended with a result and reason, and says why.
func says(t *testing.T, job *v1alpha1.VolumeHealJob, result v1alpha1.Result, reason, why string) {
	t.Helper()
	kind := v1alpha1.ConditionFailed
	if result == v1alpha1.ResultSucceeded {
		kind = v1alpha1.ConditionComplete
	}
	c := condition(job, kind)
	if job.Status.Result != result || c.Reason != reason || !strings.Contains(c.Message, why) {
		t.Errorf("want %s, %s, %q; got %+v", result, reason, why, job.Status)
	}
}

var errBudget = apierrors.NewTooManyRequests("the disruption budget does not allow it", 10)

// errTwoBudgets is what kube-apiserver 1.37 answers for a pod with several of them.
var errTwoBudgets = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
	Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
}}
