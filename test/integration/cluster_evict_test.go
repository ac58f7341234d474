package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

const ourTaints = "restage.node-healer.csi-addons.io/"

// theirTaint is one that the controller has to leave alone.
var theirTaint = corev1.Taint{Key: "example.com/theirs", Value: "x", Effect: corev1.TaintEffectNoSchedule}

// ourTaint is one that the controller may set now.
func ourTaint(name string, change ...func(*corev1.Taint)) corev1.Taint {
	taint := corev1.Taint{Key: ourTaints + name, Value: fmt.Sprint(time.Now().Unix()), Effect: corev1.TaintEffectNoSchedule}
	for _, c := range change {
		c(&taint)
	}
	return taint
}

// taintsPatch is the merge patch that leaves a node these taints.
func taintsPatch(all ...corev1.Taint) string {
	raw, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": all}})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// deniedToController are patches of a node that has theirTaint and ours.
func deniedToController(ours corev1.Taint) map[string]string {
	changed := func(change func(*corev1.Taint)) corev1.Taint {
		next := ours
		change(&next)
		return next
	}
	many := []corev1.Taint{theirTaint}
	for i := range 11 {
		many = append(many, ourTaint(fmt.Sprint("a", i)))
	}
	return map[string]string{
		"ours that evicts what runs": taintsPatch(theirTaint, changed(func(t *corev1.Taint) { t.Effect = corev1.TaintEffectNoExecute })),
		"ours without a time":        taintsPatch(theirTaint, changed(func(t *corev1.Taint) { t.Value = "" })),
		"ours with a word":           taintsPatch(theirTaint, changed(func(t *corev1.Taint) { t.Value = "soon" })),
		"ours with a short time":     taintsPatch(theirTaint, changed(func(t *corev1.Taint) { t.Value = "1" })),
		"eleven of ours":             taintsPatch(many...),
		"to remove theirs":           taintsPatch(ours),
		"to change theirs":           taintsPatch(corev1.Taint{Key: theirTaint.Key, Value: "y", Effect: corev1.TaintEffectNoSchedule}, ours),
		"ours and theirs by null":    `{"spec": {"taints": null}}`,
		"ours, and a label":          fmt.Sprintf(`{"metadata": {"labels": {"x": "y"}}, "spec": {"taints": [{"key": %q, "value": "x", "effect": "NoSchedule"}]}}`, theirTaint.Key),
		"to cordon":                  `{"spec": {"unschedulable": true}}`,
		"a provider":                 `{"spec": {"providerID": "x"}}`,
		"a label":                    `{"metadata": {"labels": {"x": "y"}}}`,
		"an annotation":              `{"metadata": {"annotations": {"node-healer.csi-addons.io/mode": "off"}}}`,
		"a finalizer":                `{"metadata": {"finalizers": ["example.com/x"]}}`,
		"an owner":                   `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]}}`,
	}
}

// controllersToken is what the controller's token may do to a node that has theirTaint.
type controllersToken struct {
	*nodesTokens
	controller, admin dynamic.NamespaceableResourceInterface
}

func newControllersToken(t *testing.T) controllersToken {
	t.Helper()
	n := newNodesTokens(t)
	installJobs(t, n.api)
	_, kubeconfig := newControllerPod(t, n.api)
	// What is a role's business, a policy denies too.
	n.api.Grant(t, ownNamespace, controllerName, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"}, Verbs: []string{"patch", "update", "create", "delete"},
	})
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	c := controllersToken{n, clientOf(t, kubeconfig).Resource(nodes), n.api.Dynamic().Resource(nodes)}
	harness.Must(t, c.patch(c.admin, taintsPatch(theirTaint))(nil))
	return c
}

// patch changes the node, or has it tried only.
func (c controllersToken) patch(as dynamic.NamespaceableResourceInterface, change string, subresources ...string) func(dryRun []string) error {
	return func(dryRun []string) error {
		_, err := as.Patch(c.t.Context(), c.nodes[0].Name, types.MergePatchType, []byte(change), metav1.PatchOptions{DryRun: dryRun}, subresources...)
		return err
	}
}

// TestControllerTaintsNodesAndNothingElse tries everything that the controller's token could
// change on a node.
func TestControllerTaintsNodesAndNothingElse(t *testing.T) {
	c := newControllersToken(t)
	patch := func(change string, subresources ...string) func([]string) error {
		return c.patch(c.controller, change, subresources...)
	}
	ours, second := ourTaint("0e9d7d9d-6d1c-4d5a-8d3f-0d6f3a1c2b4e"), ourTaint("another")
	foreign := corev1.Taint{Key: "example.com/x", Effect: corev1.TaintEffectNoSchedule}
	c.must("another taint", false, patch(taintsPatch(theirTaint, foreign)))
	c.must("a key that begins otherwise", false, patch(taintsPatch(theirTaint, ourTaint("a", func(t *corev1.Taint) { t.Key = "x." + t.Key }))))
	c.must("our taint", true, patch(taintsPatch(theirTaint, ours)))
	c.must("a second one", true, patch(taintsPatch(theirTaint, ours, second)))
	older := ours
	older.Value = "1700000000"
	c.must("another value of it, and a second one", true, patch(taintsPatch(theirTaint, older, second)))
	for what, change := range deniedToController(ours) {
		c.must(what, false, patch(change))
	}
	c.must("its status", false, patch(`{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`, "status"))
	c.must("to delete it", false, func(dryRun []string) error {
		return c.controller.Delete(t.Context(), c.nodes[0].Name, metav1.DeleteOptions{DryRun: dryRun})
	})
	c.must("to remove ours", true, patch(taintsPatch(theirTaint)))
	c.must("ours again", true, patch(taintsPatch(theirTaint, ours, second)))
	c.removesAllTaints()
	// Others are not held to it.
	c.must("an administrator", true, c.patch(c.admin, `{"spec": {"taints": null}}`))
}

// TestControllerEvictsPodsByUIDAndGently tries what the controller's token could do to pods.
func TestControllerEvictsPodsByUIDAndGently(t *testing.T) {
	n := newNodesTokens(t)
	installJobs(t, n.api)
	_, kubeconfig := newControllerPod(t, n.api)
	evict := func(namespace string, change func(*policyv1.Eviction)) func(dryRun []string) error {
		pod := cluster.Pod(namespace, "", "")
		pod.GenerateName = "evicted-"
		pod = cluster.Create(t, n.api, pod)
		return func(dryRun []string) error {
			eviction := &policyv1.Eviction{
				TypeMeta:      metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
				ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
				DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun, Preconditions: &metav1.Preconditions{UID: &pod.UID}},
			}
			change(eviction)
			raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(eviction)
			if err != nil {
				t.Fatal(err)
			}
			_, err = clientOf(t, kubeconfig).Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(pod.Namespace).
				Create(t.Context(), &unstructured.Unstructured{Object: raw}, metav1.CreateOptions{DryRun: dryRun}, "eviction")
			return err
		}
	}
	ns := n.api.Namespace(t)
	n.must("by UID", true, evict(ns, func(*policyv1.Eviction) {}))
	n.must("in kube-system", false, evict("kube-system", func(*policyv1.Eviction) {}))
	n.must("without options", false, evict(ns, func(e *policyv1.Eviction) { e.DeleteOptions = nil }))
	n.must("whatever has the name", false, evict(ns, func(e *policyv1.Eviction) { e.DeleteOptions.Preconditions = nil }))
	n.must("at once", false, evict(ns, func(e *policyv1.Eviction) { e.DeleteOptions.GracePeriodSeconds = ptr.To[int64](0) }))
}

// removesAllTaints runs the page's command for it.
func (n *nodesTokens) removesAllTaints() {
	n.t.Helper()
	page, err := os.ReadFile("../../docs/eviction.md")
	harness.Must(n.t, err)
	_, rest, _ := strings.Cut(string(page), "this removes all:\n\n```sh\n")
	command, _, found := strings.Cut(rest, "```")
	if !found {
		n.t.Fatal("the page has no command")
	}
	cmd := exec.Command("bash", "-euc", command)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+n.api.AdminKubeconfig(), "PATH="+filepath.Dir(n.api.Kubelet())+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	node, err := n.api.Admin().CoreV1().Nodes().Get(n.t.Context(), n.nodes[0].Name, metav1.GetOptions{})
	harness.Must(n.t, err)
	if taints := node.Spec.Taints; len(taints) != 1 || taints[0].Key != "example.com/theirs" {
		n.t.Errorf("left are %+v", taints)
	}
}

// TestControllerEvictsByItself where a node says so of a claim, with the shipped rights: not
// in a namespace that forbids it, and not before a setting names the driver.
func TestControllerEvictsByItself(t *testing.T) {
	j := newJobs(t)
	claim, _ := j.used("sick", thisNode)
	j.saysSick(j.namespace, claim)
	forbids := j.api.Namespace(t)
	j.api.Bind(t, cluster.Volume{PV: "pv-spared", ID: "spared", Driver: harness.Driver, Namespace: forbids, Claim: "spared"})
	j.api.Kubectl(t, "annotate", "namespace", forbids, "node-healer.csi-addons.io/evict=false")
	j.saysSick(forbids, "spared")
	made := func(namespace string) (names []string) {
		t.Helper()
		all, err := j.api.Dynamic().Resource(v1alpha1.GroupVersion.WithResource("volumehealjobs")).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		harness.Must(t, err)
		for _, job := range all.Items {
			if strings.HasPrefix(job.GetName(), "evict-") {
				names = append(names, job.GetName())
			}
		}
		return names
	}
	j.restart()
	j.run(newJob(j.namespace, "asked-for", claim)) // it leads, and has searched
	if all := made(j.namespace); len(all) > 0 {
		t.Errorf("without the setting: %v", all)
	}
	j.api.Kubectl(t, "patch", "configmap/node-healer", "--namespace="+ownNamespace, "--type=merge",
		`--patch={"data":{"evict":"drivers: [`+harness.Driver+`]\nafter: 0s\n"}}`)
	j.restart()
	harness.Eventually(t, "there is a job", func() bool { return len(made(j.namespace)) == 1 })
	job := j.ended(newJob(j.namespace, made(j.namespace)[0], claim))
	// The claim's pod runs, and the node knows no such volume, whatever the annotation says.
	j.reports(job, v1alpha1.ResultFailed, "VolumeNotFound", "node "+thisNode)
	if job.Spec.Mode != v1alpha1.ModeEvict || job.Spec.Target.PersistentVolumeClaim != claim {
		t.Errorf("got %+v", job)
	}
	if all := made(forbids); len(all) > 0 {
		t.Errorf("in the namespace that forbids it: %v", all)
	}
	if log := j.controller.Log.String(); strings.Contains(log, "forbidden") {
		t.Error(log)
	}
}

// saysSick annotates a claim as its node would.
func (j *jobs) saysSick(namespace, claim string) {
	j.T.Helper()
	j.api.Kubectl(j.T, "annotate", "pvc", "--namespace="+namespace, claim,
		healthPrefix+`uid={"state":"unhealthy","node":"`+thisNode+`","lastChecked":"`+time.Now().UTC().Format(time.RFC3339)+`","evictable":["FilesystemShutdown"]}`)
}
