package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
)

const (
	// maxSick is how many volumes of one driver may be sick: with more it is the storage.
	maxSick = 3
	// maxSickOfOthers is how many of them count of one other namespace than the job's.
	maxSickOfOthers = 2
	// maxEvicted is how many pods one job evicts: the ledger names each.
	maxEvicted = 100
	// maxOthers is how many other volumes the evicted pods may have together: the node is
	// asked for each.
	maxOthers = 20
)

// evidence is what a decision to evict goes by. It is asked for anew before each act.
type evidence struct {
	// settings are the ConfigMap's; nil: there is none.
	settings  map[string]string
	volume    volume
	namespace *corev1.Namespace
	// class and driver have no name where there is none.
	class  *storagev1.StorageClass
	driver *storagev1.CSIDriver
	node   *corev1.Node
	// pods are those that use the claim and have not ended, on all nodes.
	pods   []corev1.Pod
	others []otherVolume
	// daemons are the driver's DaemonSets with a pod on the node.
	daemons []appsv1.DaemonSet
	// notReady is one of their pods on the node that is not ready.
	notReady string
	// twins are the other PersistentVolumes of the same driver and handle.
	twins []string
	// sick is how many claims' annotations say unhealthy, of the driver's volumes.
	sick int
	// fences are the NetworkFences that fence or may fence.
	fences []fence
	// asked is what the node said of the volume.
	asked outcome
	// begun are the pods of the eviction that was begun; none before.
	begun []types.UID
}

// otherVolume is a volume that a pod loses, too, and what the node said of it.
type otherVolume struct {
	volume

	asked outcome
}

// fence is a NetworkFence of CSI-Addons.
type fence struct {
	name  string
	cidrs []string
}

// here are the pods of the node that use the volume.
func (e *evidence) here() []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(e.pods), func(p corev1.Pod) bool { return p.Spec.NodeName != e.node.Name })
}

// staysStaged reports whether no new stage of the volume is needed. Errors that a filesystem has
// counted need one only where they were asked for: the pods that work stay.
func (e *evidence) staysStaged() bool {
	allowed, _ := parseSettings(e.settings, "")
	return !slices.ContainsFunc(e.asked.found, func(f finding) bool {
		return f.newStage && (f.reason != clustersettings.FilesystemErrors || slices.Contains(allowed.Reasons, f.reason))
	})
}

// goes are the pods that are evicted: all of the node that use the volume, so that it is staged
// anew, or those alone of which a new one is needed.
func (e *evidence) goes() []corev1.Pod {
	if !e.staysStaged() {
		return e.here()
	}
	return slices.DeleteFunc(e.here(), func(p corev1.Pod) bool {
		return !slices.ContainsFunc(e.asked.found, func(f finding) bool { return f.newPod == p.UID })
	})
}

// refused returns why no pod may be evicted; empty: all may. It is asked right before each
// act: a pod that is evicted for nothing is harm, a volume that is not healed is a report.
func (e *evidence) refused() string {
	allowed, why := parseSettings(e.settings, e.volume.pv.Spec.CSI.Driver)
	if why != "" {
		return why
	}
	for _, not := range []func() string{
		func() string { return e.noNewPodHelps(allowed) }, e.annotatedAgainst, e.nodeFenced, e.heldElsewhere, e.podsStay, e.othersLost, e.driverKeptAway, e.backendSick,
	} {
		if why := not(); why != "" {
			return why
		}
	}
	return ""
}

// parseSettings returns what pods with a driver's volumes may be evicted for, or why they
// may not; without a driver, of any that is allowed.
func parseSettings(data map[string]string, driver string) (clustersettings.Eviction, string) {
	for key := range data {
		if !slices.Contains(clustersettings.Keys, key) {
			return clustersettings.Eviction{}, fmt.Sprintf("the settings have the unknown key %q", key)
		}
	}
	if mode, set := data[clustersettings.Mode]; set && mode != clustersettings.ModeHeal {
		return clustersettings.Eviction{}, fmt.Sprintf("mode %q by the settings", mode)
	}
	text, set := data[clustersettings.Evict]
	if !set {
		return clustersettings.Eviction{}, "the cluster has no setting evict"
	}
	allowed, err := clustersettings.ParseEviction(text)
	switch {
	case err != nil:
		return clustersettings.Eviction{}, fmt.Sprintf("the setting evict: %v", err)
	case driver != "" && !slices.Contains(allowed.Drivers, driver):
		return clustersettings.Eviction{}, fmt.Sprintf("driver %s is not among the drivers of the setting evict", driver)
	}
	return allowed, ""
}

// annotatedAgainst: an object forbids heals or evictions; the strictest one counts.
func (e *evidence) annotatedAgainst() string {
	type annotated struct {
		kind   string
		object metav1.Object
	}
	all := []annotated{{"Namespace", e.namespace}, {"PersistentVolumeClaim", e.volume.claim}, {"PersistentVolume", e.volume.pv}, {"Node", e.node}, {"StorageClass", e.class}}
	for i := range e.pods {
		all = append(all, annotated{"Pod", &e.pods[i]})
	}
	for _, other := range e.others {
		all = append(all, annotated{"PersistentVolumeClaim", other.claim}, annotated{"PersistentVolume", other.pv})
	}
	for _, a := range all {
		if why := forbids(a.object); why != "" {
			return fmt.Sprintf("%s %s has the annotation %s", a.kind, a.object.GetName(), why)
		}
	}
	return ""
}

// forbids returns the annotation by which an object forbids evictions; empty: none.
func forbids(o metav1.Object) string {
	for key, allows := range map[string]string{clustersettings.ModeAnnotation: clustersettings.ModeHeal, clustersettings.EvictAnnotation: "true"} {
		if value, set := o.GetAnnotations()[key]; set && value != allows {
			return key + "=" + value
		}
	}
	return ""
}

// nodeFenced: the node is being taken out of service. What its pods leave behind is then
// the business of who does that.
func (e *evidence) nodeFenced() string {
	for _, t := range e.node.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			return fmt.Sprintf("node %s has the taint %s", e.node.Name, t.Key)
		}
	}
	for _, f := range e.fences {
		// Rook names a fence after the node, and begins with it.
		if strings.HasPrefix(f.name, e.node.Name) {
			return fmt.Sprintf("NetworkFence %s names node %s", f.name, e.node.Name)
		}
		for _, cidr := range f.cidrs {
			network, err := netip.ParsePrefix(cidr)
			if err != nil {
				return fmt.Sprintf("NetworkFence %s has %q, which may be node %s", f.name, cidr, e.node.Name)
			}
			for _, a := range e.node.Status.Addresses {
				if ip, err := netip.ParseAddr(a.Address); err == nil && network.Contains(ip.Unmap()) {
					return fmt.Sprintf("NetworkFence %s names address %s of node %s", f.name, a.Address, e.node.Name)
				}
			}
		}
	}
	return ""
}

// heldElsewhere: something else keeps the volume staged, or it is no filesystem.
func (e *evidence) heldElsewhere() string {
	switch {
	case e.volume.block():
		return "the volume is a block device: no new stage helps"
	case e.staysStaged():
		return ""
	case len(e.twins) > 0:
		return fmt.Sprintf("PersistentVolume %s is of the same driver and handle: its pods would keep the volume staged", e.twins[0])
	}
	for _, p := range e.pods {
		if p.Spec.NodeName != "" && p.Spec.NodeName != e.node.Name {
			return fmt.Sprintf("pod %s uses the claim on node %s, too", p.Name, p.Spec.NodeName)
		}
	}
	return ""
}

const safeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"

// keepAnnotations are those by which a pod asks not to be evicted, and the value with which
// it does not ask.
var keepAnnotations = map[string]string{
	safeToEvict:                                          "true",
	"karpenter.sh/do-not-disrupt":                        "false",
	"karpenter.sh/do-not-evict":                          "false",
	"descheduler.alpha.kubernetes.io/no-eviction":        "false",
	"descheduler.alpha.kubernetes.io/prefer-no-eviction": "false",
}

// podsStay: a pod of the node must not go, or would come back to the volume as it is.
func (e *evidence) podsStay() string {
	all := e.goes()
	switch n := len(all); {
	case n == 0:
		return "no pod of the node has to go"
	case n > maxEvicted:
		return fmt.Sprintf("%d pods of the node use the claim, at most %d are evicted", n, maxEvicted)
	}
	taint := taintOf(e.volume.claim.UID, 0)
	for i := range all {
		pod := &all[i]
		if why := e.podStays(pod); why != "" {
			return "pod " + pod.Name + " " + why
		}
		if !e.staysStaged() && tolerates(pod.Spec.Tolerations, taint) {
			return fmt.Sprintf("pod %s tolerates the taint %s: a new one would get the volume as it is", pod.Name, taint.Key)
		}
	}
	return ""
}

func (e *evidence) podStays(pod *corev1.Pod) string {
	for key, goes := range keepAnnotations {
		if value, set := pod.Annotations[key]; set && value != goes {
			return fmt.Sprintf("has the annotation %s=%s", key, value)
		}
	}
	owner := metav1.GetControllerOf(pod)
	grace := time.Duration(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0)) * time.Second
	switch {
	case grace > evictDeadline/2:
		return fmt.Sprintf("may take %v to end, and the taint stands for %v at most", grace, evictDeadline)
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return "is static"
	case owner == nil:
		return "has no controller that would make a new one"
	// The controller has to make a new pod that may run on any node. That of a Job starts its
	// work again, and that of a DaemonSet comes back to the node.
	case !strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/") || owner.Kind != "ReplicaSet" && owner.Kind != "StatefulSet":
		return fmt.Sprintf("is of a %s, which is not known to make a new one elsewhere", owner.Kind)
	case pod.Annotations[safeToEvict] != "true" && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil || v.Ephemeral != nil }):
		return fmt.Sprintf("has an emptyDir or an ephemeral volume, which would be lost, and not the annotation %s=true", safeToEvict)
	}
	return ""
}

// othersLost: another volume of the pods has something that is lost with them, for example
// files in its bare directory, or may have.
func (e *evidence) othersLost() string {
	if len(e.others) > maxOthers {
		return fmt.Sprintf("the pods have more than %d other volumes", maxOthers)
	}
	for _, other := range e.others {
		why := e.notEnded(other.asked.found)
		if *other.asked.abnormal && len(other.asked.found) == 0 {
			why = "node " + e.node.Name + " did not say what it found"
		}
		if why != "" {
			return fmt.Sprintf("the pods use claim %s, too: %s", other.claim.Name, why)
		}
	}
	return ""
}

// driverKeptAway: nothing is unstaged or published while the driver's pod is not there. If
// the taint kept away one that is made anew meanwhile, nothing would ever be unstaged.
func (e *evidence) driverKeptAway() string {
	name := e.volume.pv.Spec.CSI.Driver
	if e.driver.Name == "" {
		return fmt.Sprintf("there is no CSIDriver %s", name)
	}
	if e.notReady != "" {
		return fmt.Sprintf("pod %s of driver %s is not ready: nothing would be unstaged or published", e.notReady, name)
	}
	if e.staysStaged() {
		return ""
	}
	if len(e.daemons) == 0 {
		return fmt.Sprintf("the DaemonSet of driver %s is not found on node %s, by its directory: nothing tells whether it tolerates our taint", name, e.node.Name)
	}
	taint := taintOf(e.volume.claim.UID, 0)
	for _, set := range e.daemons {
		if !tolerates(set.Spec.Template.Spec.Tolerations, taint) {
			return fmt.Sprintf("DaemonSet %s/%s of driver %s does not tolerate the taint %s", set.Namespace, set.Name, name, taint.Key)
		}
	}
	return ""
}

// tolerates goes by the key: a toleration of the one value, which is a time, is none.
func tolerates(tolerations []corev1.Toleration, taint corev1.Taint) bool {
	return slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
		return t.ToleratesTaint(klog.Background(), &taint, false)
	})
}

// noNewPodHelps: the node does not say now that the volume has something which a new stage or
// a new pod ends, and nothing else. A device or server that does not answer would not answer
// in the new pod either, and files in a bare directory are lost with the old one.
func (e *evidence) noNewPodHelps(allowed clustersettings.Eviction) string {
	if why := e.notEnded(e.asked.found); why != "" {
		return why
	}
	asked := false
	for _, f := range e.asked.found {
		switch {
		case slices.Contains(allowed.Reasons, f.reason):
			asked = true
		case f.reason != clustersettings.FilesystemErrors: // which come with others
			return fmt.Sprintf("%s is not among the reasons of the setting evict: %s", f.reason, f.message)
		}
	}
	if !asked {
		return fmt.Sprintf("nothing was found on node %s that pods may be evicted for: %s", e.node.Name, e.asked.message)
	}
	return ""
}

// notEnded says which finding does not end with the pods; empty: all do.
func (e *evidence) notEnded(found []finding) string {
	for _, f := range found {
		ofPod := func(p corev1.Pod) bool { return p.UID == f.newPod }
		if !f.newStage && !slices.Contains(e.begun, f.newPod) && !slices.ContainsFunc(e.here(), ofPod) {
			return fmt.Sprintf("no new pod is known to end %s: %s", f.reason, f.message)
		}
	}
	return ""
}

// backendSick: with many sick volumes it is the storage, and new pods would end there, too. Most are
// of namespaces that the job's users may not read, so none is named.
func (e *evidence) backendSick() string {
	if e.sick > maxSick {
		return fmt.Sprintf("more than %d volumes of driver %s are sick, or may be (by the annotations on claims), so it is the storage", maxSick, e.volume.pv.Spec.CSI.Driver)
	}
	return ""
}
