package why

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/kube"
	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
)

// Config says whom to ask.
type Config struct {
	// Client is for the cluster, as the person may use it.
	kube.Client

	Namespace string
	// Program is what the person calls this program.
	Program string
	// Node is nil unless the program runs as root on a node.
	Node *Node
}

type podCase struct {
	*api

	pod *corev1.Pod
	// mounting is true while the pod waits for its volumes, or for the sandbox after them; stopping when it was deleted.
	mounting, stopping bool
	volumes            []volume
	// well has for each volume when the pod's node last called it healthy, by the claim's
	// annotation; zero where the node does not.
	well []time.Time
}

type volume struct {
	claim, pv, driver, handle string
	// shared volumes may be attached to several nodes.
	shared bool
}

// Pod says why a pod does not start, stop or read.
func Pod(ctx context.Context, c Config, name string) (*Answer, error) {
	a := &api{c, &Answer{}}
	asking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	pod, err := kube.Get[corev1.Pod](asking, a.Client, kube.Pods, c.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && c.Node != nil:
		a.Subject = "pod " + c.Namespace + "/" + name + " does not exist"
		if _, err := kube.Get[corev1.Node](asking, a.Client, kube.Nodes, "", c.Node.Name); err != nil {
			// By a wrong name the node would have no pods, and all their directories would be leftovers.
			return nil, fmt.Errorf("%s, and of this node nothing is said: %w (--node)", a.Subject, err)
		}
		gone := &podCase{api: a, pod: &corev1.Pod{}}
		gone.onNode(ctx)
		if a.sort(); len(a.Causes) == 0 {
			return nil, err
		}
		return a.Answer, nil
	case err != nil:
		return nil, err
	}
	p := &podCase{api: a, pod: pod}
	p.state()
	for _, v := range pod.Spec.Volumes {
		p.volume(asking, v)
	}
	p.node(asking)
	p.attached(asking)
	p.events(asking)
	switch {
	case pod.Spec.NodeName == "":
	case c.Node != nil && c.Node.Name == pod.Spec.NodeName:
		p.onNode(ctx)
	default:
		a.OnNode = fmt.Sprintf("kubectl exec -n csi-addons-node-healer $(kubectl get pods -n csi-addons-node-healer -l app.kubernetes.io/component=node-server"+
			" --field-selector=spec.nodeName=%s -o name) -- healerctl why pod/%s -n %s", pod.Spec.NodeName, name, c.Namespace)
	}
	a.sort()
	return a.Answer, nil
}

// state says how the pod stands, and what keeps it that is no matter of its volumes.
func (p *podCase) state() {
	pod := p.pod
	p.stopping = pod.DeletionTimestamp != nil
	// A sandbox is made once all volumes are mounted: what waits then waits for its image, mostly.
	p.mounting = !p.stopping && pod.Status.Phase == corev1.PodPending && !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
	})
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waits := ptr.Deref(c.State.Waiting, corev1.ContainerStateWaiting{})
		switch {
		case c.State.Waiting == nil:
			p.mounting = false // what has run had its volumes
		case waits.Reason != "" && waits.Reason != "ContainerCreating" && waits.Reason != "PodInitializing" && !p.stopping:
			p.mounting = false
			p.add("ContainerWaits", fmt.Sprintf("container %s: %s: %s", c.Name, waits.Reason, waits.Message), p.kubectl("describe pod "+pod.Name))
		}
	}
	state := string(pod.Status.Phase)
	switch {
	case p.stopping:
		state += ", to end by " + pod.DeletionTimestamp.Format(time.RFC3339)
	case p.mounting && pod.Spec.NodeName != "":
		state = "waits for its volumes or its sandbox since " + pod.CreationTimestamp.Format(time.RFC3339)
	}
	p.Subject = fmt.Sprintf("pod %s/%s, on node %s: %s", pod.Namespace, pod.Name, cmp.Or(pod.Spec.NodeName, "none"), state)
	if p.stopping && len(pod.Finalizers) > 0 {
		p.add("FinalizerPending", "the pod is kept for "+strings.Join(pod.Finalizers, ", "),
			"see the log of the controller that set this finalizer, and takes it off once it is done. Taken off by hand, what that controller was to do is left undone")
	}
}

func (p *podCase) kubectl(args string) string { return "kubectl " + args + " -n " + p.Namespace }

// node says how the pod's node stands.
func (p *podCase) node(ctx context.Context) {
	name := p.pod.Spec.NodeName
	if name == "" {
		err := kube.Each(ctx, p.Client, kube.Nodes, "", "", func(node *corev1.Node) {
			if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, clustersettings.TaintPrefix) }) {
				p.add("NotScheduled", "node "+node.Name+" has a taint of node-healer ("+clustersettings.TaintPrefix+"...), which keeps new pods away until a volume has been unstaged there",
					"wait: the controller takes it off, after minutes at most; kubectl get volumehealjobs -A says how far it is")
			}
		})
		p.read("which nodes have a taint of node-healer", err)
		return
	}
	if c := p.stateOf(ctx, name); c != nil {
		p.Causes = append(p.Causes, *c)
	}
}

func (p *podCase) driverLog() string {
	return "see the driver's pod on this node, and its log: kubectl get pods -A --field-selector=spec.nodeName=" + p.pod.Spec.NodeName
}

// stateOf returns what is wrong with a node; nil if nothing is, or if that is not known. A pod that
// is deleted by force, or a volume that is detached, while the node still writes loses data: the
// taint comes after the switch.
func (p *podCase) stateOf(ctx context.Context, name string) *Cause {
	node, err := kube.Get[corev1.Node](ctx, p.Client, kube.Nodes, "", name)
	switch {
	case apierrors.IsNotFound(err):
		return &Cause{"NodeGone", "node " + name + " is not in the cluster any more; its machine may still run, and write", []string{
			"see at its console whether the machine still runs. If it does, switch it off or have it join again: Kubernetes deletes the pods of a node that was removed, and detaches their volumes, without knowing that it has stopped writing",
		}}
	case !p.read("how node "+name+" stands", err):
		return nil
	}
	has := func(key string) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	}
	ready := corev1.NodeCondition{Status: corev1.ConditionUnknown}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			ready = c
		}
	}
	since := " since " + ready.LastTransitionTime.Format(time.RFC3339)
	switch {
	case has(corev1.TaintNodeOutOfService):
		return &Cause{"NodeOutOfService", fmt.Sprintf("node %s has the taint %s: its pods are deleted and its volumes detached without waiting for it", name, corev1.TaintNodeOutOfService), []string{
			"once the node has been started anew and is ready: kubectl taint node " + name + " " + corev1.TaintNodeOutOfService + "-",
		}}
	case has(corev1.TaintNodeUnreachable) || ready.Status == corev1.ConditionUnknown:
		return &Cause{"NodeUnreachable", "node " + name + " has not been heard of" + since + "; it may still run, and write", []string{
			"kubectl describe node " + name + "; then see at its console whether it runs: a network or a kubelet that comes back is enough, and loses nothing",
			"only once it is switched off and stays so: kubectl taint node " + name + " " + corev1.TaintNodeOutOfService + "=nodeshutdown:NoExecute. Before that no pod of it may be deleted by force: two nodes would write to one volume",
		}}
	case has(corev1.TaintNodeNotReady) || ready.Status != corev1.ConditionTrue:
		return &Cause{"NodeNotReady", "node " + name + " is not ready" + since + ": " + ready.Message, []string{"kubectl describe node " + name + "; on the node: journalctl -u kubelet"}}
	}
	return nil
}

// attached finds the nodes that have a volume which only one can have.
func (p *podCase) attached(ctx context.Context) {
	if !p.mounting || p.pod.Spec.NodeName == "" || len(p.volumes) == 0 {
		return
	}
	err := kube.Each(ctx, p.Client, kube.Attachments, "", "", func(a *storagev1.VolumeAttachment) {
		i := slices.IndexFunc(p.volumes, func(v volume) bool {
			return v.pv != "" && v.pv == ptr.Deref(a.Spec.Source.PersistentVolumeName, "") && !v.shared
		})
		if i < 0 || a.Spec.NodeName == p.pod.Spec.NodeName {
			return
		}
		message := fmt.Sprintf("claim %s (volume %s) is attached to node %s, and only one node can have it (Multi-Attach)", p.volumes[i].claim, p.volumes[i].pv, a.Spec.NodeName)
		if a.Status.DetachError != nil {
			message += "; detaching fails: " + a.Status.DetachError.Message
		}
		if c := p.stateOf(ctx, a.Spec.NodeName); c != nil {
			p.add("AttachedElsewhere", message+"; "+c.Message, c.ToDo...)
			return
		}
		p.add("AttachedElsewhere", message,
			p.kubectl("get pods --field-selector=spec.nodeName="+a.Spec.NodeName)+" shows who has it there. One that runs: have both on one node, or scale it down. One that does not stop: "+p.Program+" why pod/NAME",
			"nobody has it: kubectl describe volumeattachment "+a.Name+", and the log of "+a.Spec.Attacher+"'s controller (csi-attacher). The object and its finalizer stay: they say that the node may still write")
	})
	p.read("which nodes have the volumes attached", err)
}
