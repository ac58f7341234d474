package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

// sickVolume is another claim and its volume, which a node says is sick.
func sickVolume(name, driver string) []client.Object {
	claim, pv := boundClaim()
	claim.Name, claim.UID, claim.Spec.VolumeName = name, types.UID(name), "pv-"+name
	claim.Annotations = map[string]string{volumehealth.Annotation + "node-uid": `{"state":"unhealthy"}`}
	pv.Name, pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle = "pv-"+name, driver, name
	pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = name, types.UID(name)
	return []client.Object{claim, pv}
}

// movedVolume is a sickVolume of which another node has said since that it is healthy.
func movedVolume(name string, mode corev1.PersistentVolumeAccessMode) []client.Object {
	return movedAt(name, mode, time.Now())
}

func movedAt(name string, mode corev1.PersistentVolumeAccessMode, at time.Time) []client.Object {
	o := sickVolume(name, "driver")
	says := func(state string, at time.Time) string {
		return fmt.Sprintf(`{"state":%q,"lastChecked":%q}`, state, at.UTC().Format(time.RFC3339))
	}
	o[0].SetAnnotations(map[string]string{
		volumehealth.Annotation + "node-uid": says("unhealthy", at.Add(-time.Minute)), volumehealth.Annotation + "node-uid-2": says("healthy", at),
	})
	o[1].(*corev1.PersistentVolume).Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
	return o
}

func networkFence(name, state, cidr string) *unstructured.Unstructured {
	fence := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"fenceState": state, "cidrs": []any{cidr}}, "status": map[string]any{"result": "Succeeded"}}}
	fence.SetAPIVersion("csiaddons.openshift.io/v1alpha1")
	fence.SetKind("NetworkFence")
	fence.SetName(name)
	return fence
}

var evidenceCases = map[string]struct {
	change func(w *evictWorld)
	why    string
}{
	"the driver has no DaemonSet there": {
		func(w *evictWorld) {
			w.update("kube-system", "driver-x", &corev1.Pod{}, func(o client.Object) {
				o.(*corev1.Pod).Spec.Volumes[0].HostPath.Path = "/var/lib/kubelet/plugins/driver-2"
			})
		},
		"is not found on node",
	},
	"its template tolerates nothing": {
		func(w *evictWorld) {
			w.update("kube-system", "driver", &appsv1.DaemonSet{}, func(o client.Object) { o.(*appsv1.DaemonSet).Spec.Template.Spec.Tolerations = nil })
		},
		"does not tolerate",
	},
	"its pod is not ready": {
		func(w *evictWorld) {
			pod := daemonObjects()[0].(*corev1.Pod)
			pod.Status.Conditions = nil
			must(w.t, w.api.Status().Update(w.ctx, pod))
		},
		"driver-x of driver driver is not ready",
	},
	"more are sick": {
		func(w *evictWorld) {
			for i := range 4 {
				w.create(sickVolume(fmt.Sprint("c", i), "driver")...)
			}
		},
		"more than 3 volumes",
	},
	"more are sick, of other tenants": {
		func(w *evictWorld) {
			for i := range 4 {
				w.createIn(fmt.Sprint("secret-", i%2), sickVolume(fmt.Sprint("c", i), "driver"))
			}
		},
		"more than 3 volumes",
	},
	"another tenant says that more are sick": {
		func(w *evictWorld) {
			for i := range 100 {
				w.createIn("secret", sickVolume(fmt.Sprint("c", i), "driver"))
			}
		},
		"",
	},
	"very many are sick of another": {
		func(w *evictWorld) {
			reads := 0
			w.reconciler.cfg.Reader = failing(w.reconciler.cfg.Reader, func(o client.Object, _ client.ObjectList) bool {
				if _, is := o.(*corev1.PersistentVolume); is {
					reads++
				}
				return reads > maxSearched+5
			})
			for i := range 100 {
				w.create(sickVolume(fmt.Sprint("c", i), "other")...)
			}
		},
		"more than 3 volumes",
	},
	"a fence":     {func(w *evictWorld) { w.create(networkFence("f", "Fenced", "10.0.0.7/32")) }, "NetworkFence f"},
	"one may go":  {func(w *evictWorld) { w.create(networkFence("f", "", "10.0.0.7/32")) }, "NetworkFence f"},
	"a twin":      {func(w *evictWorld) { w.create(twin()) }, "PersistentVolume twin"},
	"a namespace": {func(w *evictWorld) { w.annotate("", "ns", &corev1.Namespace{}) }, "Namespace ns"},
	"a class": {
		func(w *evictWorld) {
			w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class", Annotations: map[string]string{"node-healer.csi-addons.io/mode": "check"}}})
			w.ofClass("class")
		},
		"StorageClass class",
	},
	"no CSIDriver": {
		func(w *evictWorld) { w.remove(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "driver"}}) },
		"there is no CSIDriver driver",
	},
	"not staged":  {func(w *evictWorld) { w.node.staged = false }, "does not say that it has the volume staged"},
	"two budgets": {func(w *evictWorld) { w.refuse = map[string]error{"b": errTwoBudgets} }, "pod b may not be evicted"},
	"a budget":    {func(w *evictWorld) { w.refuse = map[string]error{"b": errBudget} }, "pod b may not be evicted"},
	"a budget for one of two ready pods": {
		func(w *evictWorld) { w.budget(1, "a", "b") },
		"PodDisruptionBudget budget allows 1 evictions, not 2",
	},
	"a budget for all ready pods": {func(w *evictWorld) { w.budget(1, "b") }, ""},
	"another volume of a pod": {
		func(w *evictWorld) {
			w.another("second")
			w.node.others = []finding{{reason: "TargetNotEmpty", message: "files"}}
		},
		"claim second, too: no new pod is known to end TargetNotEmpty",
	},
	"another volume of a pod, of an in-tree plugin": { // gp2 of EKS, say
		func(w *evictWorld) {
			w.another("second")
			w.update("", "pv-second", &corev1.PersistentVolume{}, func(o client.Object) {
				o.(*corev1.PersistentVolume).Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
			})
			w.node.others = []finding{{reason: "TargetNotEmpty", message: "files"}}
		},
		"claim second, too: no new pod is known to end TargetNotEmpty",
	},
	"more were sick long ago": {
		func(w *evictWorld) {
			for i := range 4 {
				old := sickVolume(fmt.Sprint("c", i), "driver")
				old[0].SetAnnotations(map[string]string{volumehealth.Annotation + "node-uid": `{"state":"unhealthy","lastChecked":"1999-12-31T20:00:00Z"}`})
				w.create(old...)
			}
		},
		"",
	},
	"the pods of more went to another node, where they work": { // as after an eviction
		func(w *evictWorld) {
			for i := range 4 {
				w.create(movedVolume(fmt.Sprint("c", i), corev1.ReadWriteOnce)...)
			}
		},
		"",
	},
	"more are sick, and worked elsewhere by a clock that was ahead": {
		func(w *evictWorld) {
			for i := range 4 {
				w.create(movedAt(fmt.Sprint("c", i), corev1.ReadWriteOnce, time.Now().Add(time.Hour))...)
			}
		},
		"more than 3 volumes",
	},
	"more are sick on a node, and work on another": {
		func(w *evictWorld) {
			for i := range 4 {
				w.create(movedVolume(fmt.Sprint("c", i), corev1.ReadWriteMany)...)
			}
		},
		"more than 3 volumes",
	},
	"no settings": {func(w *evictWorld) { w.remove(theSettings("")) }, "no setting evict"},
	"another mode": {
		func(w *evictWorld) {
			w.node.found = append(w.node.found, finding{reason: "NotResponding", message: ""})
		},
		"NotResponding",
	},
	"a pod elsewhere": {func(w *evictWorld) { w.create(appPod("node-2", "c")) }, "pod c uses the claim on node node-2"},
	"no owner":        {func(w *evictWorld) { w.create(podOn("node-1", "alone")) }, "pod alone has no controller"},
	"others are fine": {
		func(w *evictWorld) {
			w.create(sickVolume("c", "other")...)
			w.create(networkFence("f", "Unfenced", "10.0.0.7/32"))
			w.ofClass("gone")
		},
		"",
	},
	"the node is busy": {
		func(w *evictWorld) { o := hindered(ReasonVolumeBusy, passing, "busy"); w.node.answer = &o },
		"did not answer: busy",
	},
}

// TestEvidenceIsRead from the API; each change alone is enough to refuse.
func TestEvidenceIsRead(t *testing.T) {
	for name, tc := range evidenceCases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				w.update("ns", "job", &v1alpha1.VolumeHealJob{}, func(o client.Object) { o.(*v1alpha1.VolumeHealJob).Spec.DryRun = true })
				tc.change(w)
				job := w.runs()
				if tc.why == "" {
					says(t, job, v1alpha1.ResultSucceeded, ReasonWouldEvict, "")
				} else {
					says(t, job, v1alpha1.ResultFailed, ReasonEvictionRefused, tc.why)
				}
				if text := fmt.Sprint(job.Status.Conditions); strings.Contains(text, "secret") {
					t.Errorf("who may not read namespace secret reads %s", text)
				}
				w.clean()
			})
		})
	}
}

// another has a pod that uses another claim, too.
func (w *evictWorld) another(name string) {
	w.t.Helper()
	w.create(sickVolume(name, "other")...)
	pod := appPod("node-1", "c")
	second := *pod.Spec.Volumes[0].DeepCopy()
	second.PersistentVolumeClaim.ClaimName = name
	pod.Spec.Volumes = append(pod.Spec.Volumes, second)
	w.create(pod)
}

// budget is that of the pods in the namespace, of which these are ready.
func (w *evictWorld) budget(allowed int32, ready ...string) {
	w.t.Helper()
	for _, name := range ready {
		pod := &corev1.Pod{}
		must(w.t, w.api.Get(w.ctx, client.ObjectKey{Namespace: "ns", Name: name}, pod))
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		must(w.t, w.api.Status().Update(w.ctx, pod))
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "budget"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
	}
	w.create(budget)
	budget.Status.DisruptionsAllowed = allowed
	must(w.t, w.api.Status().Update(w.ctx, budget))
}

func twin() client.Object {
	_, pv := boundClaim()
	pv.Name, pv.Spec.ClaimRef = "twin", nil
	return pv
}

// TestEvictionsThatWaitCostLittle: a job for a driver that is not allowed reads and asks
// nothing, and one for a node that is silent or busy reads no lists, and less and less often:
// within its ten minutes 90 times at most where each wait is as short as chance makes one.
func TestEvictionsThatWaitCostLittle(t *testing.T) {
	silent := hindered(ReasonNodeNotReady, passing, "silent")
	for name, tc := range map[string]struct {
		change        func(w *evictWorld)
		why           string
		calls, passes int
		lists         []string
	}{
		"a driver that is not allowed": {
			change: func(w *evictWorld) { must(w.t, w.api.Update(w.ctx, theSettings("drivers: [another]\n"))) },
			why:    "not among the drivers", passes: 1, lists: []string{},
		},
		"a silent node": {
			change: func(w *evictWorld) { w.node.answer = &silent },
			why:    "did not answer: silent", calls: 90, passes: 90, lists: []string{"*v1.PodList"},
		},
		"a node that is silent of the staging path": {
			change: func(w *evictWorld) { w.node.staging = &silent },
			why:    "did not say whether it has the volume staged: silent", calls: 180, passes: 90,
		},
		"a node that is silent of another volume": {
			change: func(w *evictWorld) { w.another("second"); w.node.silentOthers = &silent },
			why:    "did not answer: claim second: silent", calls: 180, passes: 90, lists: []string{"*v1.PodList"},
		},
		"a node that others ask": {
			change: func(w *evictWorld) { w.reconciler.calls.take("node-1") },
			why:    "other jobs ask the node", passes: 90, lists: []string{"*v1.PodList"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				tc.change(w)
				lists, passes := map[string]bool{}, 0
				w.reconciler.cfg.Reader = failing(w.reconciler.cfg.Reader, func(_ client.Object, l client.ObjectList) bool {
					if l != nil {
						lists[fmt.Sprintf("%T", l)] = true
					}
					return false
				})
				w.kubelet = func() { passes++ }
				says(t, w.runs(), v1alpha1.ResultFailed, ReasonEvictionRefused, tc.why)
				if w.node.calls > tc.calls || passes > tc.passes || tc.lists != nil && !slices.Equal(slices.Collect(maps.Keys(lists)), tc.lists) {
					t.Errorf("%d calls and lists of %v in %d passes", w.node.calls, lists, passes)
				}
			})
		})
	}
}

// TestWhatCannotBeReadIsNoDecision: every list and read that fails keeps from evictions.
func TestWhatCannotBeReadIsNoDecision(t *testing.T) {
	for _, fails := range []client.Object{&corev1.Namespace{}, &corev1.Node{}, &storagev1.StorageClass{}, &storagev1.CSIDriver{}, &appsv1.DaemonSet{}, &corev1.ConfigMap{}} {
		t.Run(fmt.Sprintf("%T", fails), func(t *testing.T) {
			w := newEvictWorld(t)
			w.ofClass("class")
			w.reconciler.cfg.Reader = failing(w.reconciler.cfg.Reader, func(o client.Object, _ client.ObjectList) bool {
				return o != nil && fmt.Sprintf("%T", o) == fmt.Sprintf("%T", fails)
			})
			w.noDecision()
		})
	}
	for _, fails := range []client.ObjectList{&corev1.PodList{}, &corev1.PersistentVolumeList{}, &metav1.PartialObjectMetadataList{}, &unstructured.UnstructuredList{}} {
		t.Run(fmt.Sprintf("%T", fails), func(t *testing.T) {
			w := newEvictWorld(t)
			w.reconciler.cfg.Reader = failing(w.reconciler.cfg.Reader, func(_ client.Object, l client.ObjectList) bool {
				return l != nil && fmt.Sprintf("%T", l) == fmt.Sprintf("%T", fails)
			})
			w.noDecision()
		})
	}
}

var errAPI = errors.New("the API does not answer")

func failing(api client.Reader, fails func(client.Object, client.ObjectList) bool) client.Reader {
	return interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if fails(o, nil) {
				return errAPI
			}
			return api.Get(ctx, key, o, options...)
		},
		List: func(ctx context.Context, api client.WithWatch, l client.ObjectList, options ...client.ListOption) error {
			if fails(nil, l) {
				return errAPI
			}
			return api.List(ctx, l, options...)
		},
	})
}

// noDecision fails the test unless a pass ends with the API's error and does nothing.
func (w *evictWorld) noDecision() {
	w.t.Helper()
	if err := w.pass(); !errors.Is(err, errAPI) && (err == nil || !strings.Contains(err.Error(), errAPI.Error())) {
		w.t.Errorf("got %v", err)
	}
	if w.taintValue() != "" || len(w.evicted)+w.dryRuns > 0 || w.job("job").Status.Result != "" {
		w.t.Errorf("evicted %v; %+v", w.evicted, w.job("job").Status)
	}
}

func (w *evictWorld) create(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		must(w.t, w.api.Create(w.ctx, o))
	}
}

// createIn makes a claim and its volume in a namespace.
func (w *evictWorld) createIn(namespace string, o []client.Object) {
	w.t.Helper()
	o[0].SetNamespace(namespace)
	o[1].(*corev1.PersistentVolume).Spec.ClaimRef.Namespace = namespace
	w.create(o...)
}

func (w *evictWorld) remove(o client.Object) {
	w.t.Helper()
	must(w.t, w.api.Delete(w.ctx, o))
}

func (w *evictWorld) update(namespace, name string, o client.Object, change func(client.Object)) {
	w.t.Helper()
	must(w.t, w.api.Get(w.ctx, client.ObjectKey{Namespace: namespace, Name: name}, o))
	change(o)
	must(w.t, w.api.Update(w.ctx, o))
}

func (w *evictWorld) ofClass(name string) {
	w.t.Helper()
	w.update("", "pv", &corev1.PersistentVolume{}, func(o client.Object) { o.(*corev1.PersistentVolume).Spec.StorageClassName = name })
}

func (w *evictWorld) annotate(namespace, name string, o client.Object) {
	w.t.Helper()
	w.update(namespace, name, o, func(o client.Object) { o.SetAnnotations(map[string]string{"node-healer.csi-addons.io/evict": "false"}) })
}

// TestCuresAreTaken by reason, and none that cannot be read.
func TestCuresAreTaken(t *testing.T) {
	got := curesIn(metadata.Pairs(healerpb.TrailerConditions, `[{"reason":"A","newStage":true},{"reason":"B","newPod":"x"},{"reason":"B"}]`))
	if len(got["A"]) != 1 || !got["A"][0].NewStage || len(got["B"]) != 2 || got["B"][0].NewPod != "x" {
		t.Errorf("got %+v", got)
	}
	for _, text := range []string{"", "[", `{"reason":"A"}`} {
		if got := curesIn(metadata.Pairs(healerpb.TrailerConditions, text)); len(got) > 0 {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}
