package integration

import (
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// person asks why.
type person struct {
	t                    *testing.T
	api                  *cluster.Cluster
	namespace            string
	program, kubeconfig  string
	here, there          *corev1.Node
	volume               cluster.Volume
	arguments, forbidden []string
}

// newPerson returns one with a namespace, two nodes and the names of a volume of their own.
func newPerson(t *testing.T) *person {
	t.Helper()
	p := &person{t: t, api: cluster.Start(t), program: harness.BuildHealerctl(t)}
	p.namespace, p.kubeconfig = p.api.Namespace(t), p.api.AdminKubeconfig()
	p.forbidden = []string{"--force", "--grace-period", "delete pod", "delete pvc", " rm ", "finalizers\":", "edit "}
	p.another()
	return p
}

// another gives the person new nodes and a new volume.
func (p *person) another() {
	p.t.Helper()
	id := utilrand.String(6)
	p.here = cluster.Create(p.t, p.api, cluster.Node("here-"+id))
	p.there = cluster.Create(p.t, p.api, cluster.Node("there-"+id))
	p.volume = cluster.Volume{PV: "pv-" + id, ID: "id-" + id, Driver: harness.Driver, Namespace: p.namespace, Claim: "data-" + id}
}

// pod creates one that waits for its volumes.
func (p *person) pod(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p.t.Helper()
	pod := cluster.Pod(p.namespace, name+"-"+utilrand.String(4), node, p.volume.Claim)
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "app", Image: "x", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
	}}}
	for _, c := range change {
		c(pod)
	}
	return cluster.Create(p.t, p.api, pod)
}

func running(pod *corev1.Pod) { cluster.Ready(pod, true) }

func (p *person) event(kind, name string, uid types.UID, reason, message string) {
	p.t.Helper()
	cluster.Create(p.t, p.api, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "e-"},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: p.namespace, Name: name, UID: uid},
		Reason:         reason, Message: message, Type: corev1.EventTypeWarning, LastTimestamp: metav1.Now(),
	})
}

// says asks, and sees that the first cause is the one, with what its message and advice have.
func (p *person) says(subject, reason string, has ...string) (text string) {
	p.t.Helper()
	text, code := p.ask(subject)
	lines := strings.Split(text, "\n")
	if code != 1 || len(lines) < 2 || !strings.HasPrefix(lines[1], reason+": ") || !strings.Contains(text, "\n  1. ") {
		p.t.Errorf("%s, exit code %d, want %s:\n%s", subject, code, reason, text)
	}
	first, _, _ := strings.Cut(text, "\nAlso:")
	for _, h := range has {
		if !strings.Contains(first, h) {
			p.t.Errorf("%s does not say %q first:\n%s", subject, h, text)
		}
	}
	return text
}

func (p *person) ask(subject string) (text string, code int) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), p.program, append([]string{"why", subject, "--kubeconfig=" + p.kubeconfig, "-n", p.namespace}, p.arguments...)...)
	out, err := cmd.CombinedOutput()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		harness.Must(p.t, err)
	}
	for _, f := range p.forbidden {
		if strings.Contains(string(out), f) {
			p.t.Errorf("%s advises %q:\n%s", subject, f, out)
		}
	}
	return string(out), code
}

// taint has a node tainted, and silent if the taint says so.
func (p *person) taint(node *corev1.Node, key string) {
	p.t.Helper()
	cluster.Change(p.t, p.api, node, func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		if key == corev1.TaintNodeUnreachable {
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
		}
	})
}

// pending creates the volume's claim without the volume.
func (p *person) pending(class string) *corev1.PersistentVolumeClaim {
	p.t.Helper()
	return cluster.Create(p.t, p.api, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.volume.Claim},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	})
}

// A whyCase is what keeps a pod from running, and what the person is told of it.
type whyCase struct {
	name string
	run  func(p *person)
}

// whyUnscheduled are pods without a node, or whose claim has no volume.
var whyUnscheduled = []whyCase{
	{"no claim", func(p *person) {
		p.says("pod/"+p.pod("app", "").Name, "ClaimNotFound", p.volume.Claim, "kubectl get pvc")
	}},
	{"provisioning fails", func(p *person) {
		claim := p.pending("fast")
		p.event("PersistentVolumeClaim", claim.Name, claim.UID, "ProvisioningFailed", "rpc error: code = ResourceExhausted desc = the pool is full")
		p.says("pod/"+p.pod("app", "").Name, "ClaimPending", "the pool is full", "kubectl describe pvc "+claim.Name)
	}},
	{"waits for a node", func(p *person) {
		claim := p.pending("late")
		p.event("PersistentVolumeClaim", claim.Name, claim.UID, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
		pod := p.pod("app", "")
		p.event("Pod", pod.Name, pod.UID, "FailedScheduling", "0/2 nodes are available: 2 Insufficient memory.")
		text := p.says("pod/"+pod.Name, "NotScheduled", "waiting for first consumer", "kubectl describe pvc")
		if !strings.Contains(text, "Insufficient memory") || strings.Contains(text, "ClaimPending") {
			p.t.Error(text)
		}
	}},
	{"its node stages a volume anew", func(p *person) {
		p.api.Bind(p.t, p.volume)
		p.taint(p.here, "restage.node-healer.csi-addons.io/"+string(p.here.UID))
		p.says("pod/"+p.pod("app", "").Name, "NotScheduled", "node "+p.here.Name+" has a taint of node-healer", "1. wait")
	}},
	{"the volume is lost", func(p *person) {
		pv, _ := p.api.Bind(p.t, p.volume)
		pod := p.pod("app", p.here.Name)
		cluster.Delete(p.t, p.api, pv)
		p.says("pod/"+pod.Name, "ClaimLost", p.volume.PV, "Retain", "keep the claim")
	}},
}

// whyNotAttached are pods whose node does not get the volume.
var whyNotAttached = []whyCase{
	{"attached to a node that is silent", func(p *person) {
		p.api.Bind(p.t, p.volume)
		cluster.Create(p.t, p.api, p.volume.Attachment(p.there.Name))
		p.taint(p.there, corev1.TaintNodeUnreachable)
		pod := p.pod("app", p.here.Name)
		p.event("Pod", pod.Name, pod.UID, "FailedAttachVolume", "Multi-Attach error for volume \""+p.volume.PV+"\"")
		text := p.says("pod/"+pod.Name, "AttachedElsewhere", p.there.Name, "it may still run, and write", "1. kubectl describe node "+p.there.Name, "2. only once it is switched off")
		if !strings.Contains(text, "kubectl exec -n") || !strings.Contains(text, "why pod/"+pod.Name) {
			p.t.Error("the answer does not say how to ask the node:\n" + text)
		}
	}},
	{"another pod uses it", func(p *person) {
		p.api.Bind(p.t, p.volume)
		cluster.Create(p.t, p.api, p.volume.Attachment(p.there.Name))
		p.pod("other", p.there.Name, running)
		p.says("pod/"+p.pod("app", p.here.Name).Name, "AttachedElsewhere", p.there.Name, "1. kubectl get pods --field-selector=spec.nodeName="+p.there.Name, "scale it down")
	}},
	{"several nodes may have it", func(p *person) {
		p.volume.Access = corev1.ReadWriteMany
		p.api.Bind(p.t, p.volume)
		cluster.Create(p.t, p.api, p.volume.Attachment(p.there.Name))
		if text, code := p.ask("pod/" + p.pod("app", p.here.Name).Name); code != 0 || !strings.Contains(text, "nothing was found") {
			p.t.Errorf("%d %s", code, text)
		}
	}},
	{"attaching fails", func(p *person) {
		p.api.Bind(p.t, p.volume)
		pod := p.pod("app", p.here.Name)
		p.event("Pod", pod.Name, pod.UID, "FailedAttachVolume", "AttachVolume.Attach failed for volume: no free slot")
		p.says("pod/"+pod.Name, "AttachFailed", "no free slot", "csi-attacher")
	}},
	{"its node is silent", func(p *person) {
		p.api.Bind(p.t, p.volume)
		p.taint(p.here, corev1.TaintNodeUnreachable)
		pod := cluster.Terminate(p.t, p.api, p.pod("app", p.here.Name, running))
		p.says("pod/"+pod.Name, "NodeUnreachable", "1. kubectl describe node "+p.here.Name, "Before that no pod of it may be deleted by force")
	}},
	{"its node is out of service", func(p *person) {
		p.api.Bind(p.t, p.volume)
		p.taint(p.here, corev1.TaintNodeOutOfService)
		p.says("pod/"+p.pod("app", p.here.Name).Name, "NodeOutOfService", corev1.TaintNodeOutOfService+"-")
	}},
}

// whyNotMounted are pods whose node has the volume, which they have not, or not healthy.
var whyNotMounted = []whyCase{
	{"the driver is not there", func(p *person) {
		p.api.Bind(p.t, p.volume)
		pod := p.pod("app", p.here.Name)
		p.event("Pod", pod.Name, pod.UID, "FailedMount", "MountVolume.MountDevice failed: driver name absent.csi.example.com not found in the list of registered CSI drivers")
		p.says("pod/"+pod.Name, "DriverNotRegistered", "absent.csi.example.com", "spec.nodeName="+p.here.Name)
	}},
	{"the driver answers ABORTED", func(p *person) {
		p.api.Bind(p.t, p.volume)
		pod := p.pod("app", p.here.Name)
		p.event("Pod", pod.Name, pod.UID, "FailedMount", `MountVolume.MountDevice failed for volume "x" : rpc error: code = Aborted desc = An operation with the given Volume ID x already exists`)
		p.says("pod/"+pod.Name, "DriverBusy", "already exists", "1. wait", "see on the node what it waits for")
	}},
	{"the driver does not answer kubelet", func(p *person) {
		p.api.Bind(p.t, p.volume)
		pod := p.pod("app", p.here.Name)
		p.event("Pod", pod.Name, pod.UID, "FailedMount", `MountVolume.SetUp failed for volume "x" : rpc error: code = DeadlineExceeded desc = context deadline exceeded`)
		p.says("pod/"+pod.Name, "DriverSilent", "kubectl get pods -A", "before its pod is restarted")
	}},
	{"the volume is sick", func(p *person) {
		harness.Must(p.t, v1alpha1.AddToScheme(scheme.Scheme))
		p.api.Apply(p.t, "deploy/default")
		p.api.Kubectl(p.t, "wait", "--for=condition=Established", "--timeout=5m", "crd/volumehealjobs.node-healer.csi-addons.io")
		_, claim := p.api.Bind(p.t, p.volume)
		pod := p.pod("app", p.here.Name, running)
		if text, code := p.ask("pod/" + pod.Name); code != 0 {
			p.t.Errorf("%d %s", code, text)
		}
		value, err := json.Marshal(volumehealth.Value{State: volumehealth.Unhealthy, Node: p.here.Name, Since: "2026-11-24T00:00:00Z", LastChecked: time.Now().Add(-time.Minute).Format(time.RFC3339)})
		harness.Must(p.t, err)
		cluster.Change(p.t, p.api, claim, func(c *corev1.PersistentVolumeClaim) {
			c.Annotations[volumehealth.Annotation+string(p.here.UID)] = string(value)
		})
		job := newJob(p.namespace, "heal", claim.Name)
		job.Status = v1alpha1.VolumeHealJobStatus{Nodes: []v1alpha1.NodeStatus{{Node: p.here.Name, Abnormal: ptr.To(true), Message: "abnormal: NotResponding"}}}
		cluster.Create(p.t, p.api, job)
		p.says("pod/"+pod.Name, "VolumeUnhealthy", "unhealthy on node "+p.here.Name+" since 2026-11-24", "VolumeHealJob heal, node "+p.here.Name+": abnormal: NotResponding", "1. healerctl heal pvc/"+claim.Name)
	}},
}

// whyNoVolume are pods that no volume keeps, or not alone.
var whyNoVolume = []whyCase{
	{"a controller keeps it", func(p *person) {
		p.api.Bind(p.t, p.volume)
		pod := cluster.Terminate(p.t, p.api, p.pod("app", p.here.Name, running, func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/keep"} }))
		p.says("pod/"+pod.Name, "FinalizerPending", "example.com/keep", "see the log of the controller")
	}},
	{"no matter of storage", func(p *person) {
		p.api.Bind(p.t, p.volume)
		pod := p.pod("app", p.here.Name, func(pod *corev1.Pod) {
			pod.Status.ContainerStatuses[0].State.Waiting.Reason = "ImagePullBackOff"
		})
		p.says("pod/"+pod.Name, "ContainerWaits", "ImagePullBackOff", "kubectl describe pod")
	}},
	{"rights are missing", func(p *person) {
		p.api.Account(p.t, p.namespace, "viewer")
		p.api.Grant(p.t, p.namespace, "viewer", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}})
		p.api.Bind(p.t, p.volume)
		p.taint(p.here, corev1.TaintNodeOutOfService)
		pod := p.pod("app", p.here.Name, func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/keep"} })
		cluster.Terminate(p.t, p.api, pod)
		admin := p.kubeconfig
		defer func() { p.kubeconfig = admin }()
		p.kubeconfig = p.api.Kubeconfig(p.t, p.namespace, "viewer")
		text := p.says("pod/"+pod.Name, "FinalizerPending")
		for _, right := range []string{`cannot get resource "persistentvolumeclaims"`, `cannot get resource "nodes"`, `cannot list resource "events"`} {
			if !strings.Contains(text, "Not read: ") || !strings.Contains(text, right) {
				p.t.Errorf("not said: %s\n%s", right, text)
			}
		}
		if text, code := p.ask("pod/" + p.pod("other", p.here.Name, running).Name); code != 4 {
			p.t.Errorf("%d %s", code, text)
		}
	}},
}

// TestWhyPod has a person ask for pods whose trouble the API knows. Each answer names the
// cause first, and what to do next.
func TestWhyPod(t *testing.T) {
	p := newPerson(t)
	for _, s := range slices.Concat(whyUnscheduled, whyNotAttached, whyNotMounted, whyNoVolume) {
		t.Run(s.name, func(t *testing.T) {
			p.t = t
			p.another()
			s.run(p)
		})
	}
	p.t = t
	if text, code := p.ask("pod/no-such-pod"); code != 3 {
		t.Errorf("%d %s", code, text)
	}
}
