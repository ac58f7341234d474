package controller

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
)

// goodEvidence allows the eviction of pod a from node-1.
func goodEvidence() *evidence {
	claim, pv := boundClaim()
	set := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "driver"}}
	set.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	e := &evidence{
		settings: map[string]string{"evict": "drivers: [driver]", "mode": "heal"}, volume: volume{claim, pv},
		namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, class: &storagev1.StorageClass{},
		driver: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "driver"}},
		node:   theNode("node-1"), pods: []corev1.Pod{*appPod("node-1", "a")},
		daemons: []appsv1.DaemonSet{set}, sick: maxSick, fences: []fence{{"other", []string{"10.0.0.8/32"}}},
		asked: answered(true, "abnormal"),
	}
	e.asked.found = []finding{shutdown}
	return e
}

// What a row of evictionRefusals changes in goodEvidence.

func annotate(o metav1.Object, key, value string) { o.SetAnnotations(map[string]string{key: value}) }

func found(all ...finding) func(*evidence) { return func(e *evidence) { e.asked.found = all } }

func aPod(change func(*corev1.Pod)) func(*evidence) { return func(e *evidence) { change(&e.pods[0]) } }

func itsOwner(change func(*metav1.OwnerReference)) func(*evidence) {
	return aPod(func(p *corev1.Pod) { change(&p.OwnerReferences[0]) })
}

func tolerations(all ...corev1.Toleration) func(*evidence) {
	return func(e *evidence) { e.daemons[0].Spec.Template.Spec.Tolerations = all }
}

// another adds a volume of the same pods, and what its check said.
func another(asked outcome, found ...finding) func(*evidence) {
	return func(e *evidence) {
		claim, pv := boundClaim()
		claim.Name, asked.found = "other", found
		e.others = []otherVolume{{volume{claim, pv}, asked}}
	}
}

const (
	modeKey  = clustersettings.ModeAnnotation
	evictKey = clustersettings.EvictAnnotation
)

var evictionRefusals = map[string]struct {
	change func(*evidence)
	why    string
}{
	"no settings":      {func(e *evidence) { e.settings = nil }, "no setting evict"},
	"no setting evict": {func(e *evidence) { delete(e.settings, "evict") }, "no setting evict"},
	"another driver":   {func(e *evidence) { e.settings["evict"] = "drivers: [other]" }, "driver driver is not among"},
	"no driver":        {func(e *evidence) { e.settings["evict"] = "" }, "is not among"},
	"a setting that cannot be read": {
		func(e *evidence) { e.settings["evict"] = "drivers: [driver]\nmax: 0" },
		"the setting evict: ",
	},
	"the cluster may only check": {func(e *evidence) { e.settings["mode"] = "check" }, `mode "check"`},
	"the cluster is off":         {func(e *evidence) { e.settings["mode"] = "off" }, `mode "off"`},
	"a misspelled setting":       {func(e *evidence) { e.settings["Mode"] = "off" }, `unknown key "Mode"`},

	"the namespace forbids it": {func(e *evidence) { annotate(e.namespace, evictKey, "false") }, "Namespace ns"},
	"the claim":                {func(e *evidence) { annotate(e.volume.claim, evictKey, "false") }, "PersistentVolumeClaim claim"},
	"the volume, misspelled":   {func(e *evidence) { annotate(e.volume.pv, evictKey, "True") }, "PersistentVolume pv"},
	"mode of the claim":        {func(e *evidence) { annotate(e.volume.claim, modeKey, "check") }, modeKey + "=check"},
	"mode of the class":        {func(e *evidence) { annotate(e.class, modeKey, "off") }, "StorageClass"},
	"mode of the node":         {func(e *evidence) { annotate(e.node, modeKey, "check") }, "Node node-1"},
	"mode of a pod":            {aPod(func(p *corev1.Pod) { annotate(p, modeKey, "check") }), "Pod a"},

	"out of service": {func(e *evidence) { e.node.Spec.Taints[0].Key = corev1.TaintNodeOutOfService }, "out-of-service"},
	"a fence of its address": {
		func(e *evidence) { e.fences = []fence{{"f", []string{"10.0.0.0/24"}}} },
		"NetworkFence f names address 10.0.0.7",
	},
	"a fence by its name": {
		func(e *evidence) { e.fences = []fence{{"node-1-rbd-rook", nil}} },
		"NetworkFence node-1-rbd-rook names node",
	},
	"a fence of nobody knows": {func(e *evidence) { e.fences = []fence{{"f", []string{"here"}}} }, "may be node node-1"},
	"a block device": {
		func(e *evidence) { e.volume.pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) },
		"block device",
	},
	"another volume of its ID": {func(e *evidence) { e.twins = []string{"pv-2"} }, "PersistentVolume pv-2"},
	"a pod on another node": {
		func(e *evidence) { e.pods = append(e.pods, *appPod("node-2", "b")) },
		"pod b uses the claim on node node-2",
	},
	"no pod here":             {func(e *evidence) { e.pods = nil }, "no pod of the node"},
	"very many pods":          {func(e *evidence) { e.pods = make([]corev1.Pod, 101); fill(e.pods) }, "101 pods"},
	"without a controller":    {aPod(func(p *corev1.Pod) { p.OwnerReferences = nil }), "no controller"},
	"an owner, no controller": {itsOwner(func(o *metav1.OwnerReference) { o.Controller = nil }), "no controller"},
	"static":                  {aPod(func(p *corev1.Pod) { annotate(p, corev1.MirrorPodAnnotationKey, "x") }), "is static"},
	"very long to end": {
		aPod(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](301) }),
		"may take 5m1s to end",
	},
	"a DaemonSet's": {itsOwner(func(o *metav1.OwnerReference) { o.Kind = "DaemonSet" }), "is of a DaemonSet"},
	"a Job's":       {itsOwner(func(o *metav1.OwnerReference) { o.APIVersion, o.Kind = "batch/v1", "Job" }), "is of a Job"},
	"a kind like ours": {
		itsOwner(func(o *metav1.OwnerReference) { o.APIVersion = "apps.example.com/v1" }),
		"not known to make a new one",
	},
	"safe-to-evict": {
		aPod(func(p *corev1.Pod) { annotate(p, "cluster-autoscaler.kubernetes.io/safe-to-evict", "false") }),
		"safe-to-evict=false",
	},
	"do-not-disrupt": {
		aPod(func(p *corev1.Pod) { annotate(p, "karpenter.sh/do-not-disrupt", "true") }),
		"do-not-disrupt=true",
	},
	"a pod that tolerates all": {
		aPod(func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }),
		"tolerates the taint",
	},
	"one of two pods":      {func(e *evidence) { e.pods = append(e.pods, *podOn("node-1", "b")) }, "pod b has no controller"},
	"no CSIDriver":         {func(e *evidence) { e.driver.Name = "" }, "no CSIDriver"},
	"no DaemonSet":         {func(e *evidence) { e.daemons = nil }, "is not found on node"},
	"its pod is not ready": {func(e *evidence) { e.notReady = "kube-system/driver-x" }, "is not ready"},
	"it tolerates nothing": {tolerations(), "does not tolerate the taint " + taintKey},
	"it tolerates NoExecute": {
		tolerations(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}),
		"does not tolerate",
	},
	"it tolerates no value": {tolerations(corev1.Toleration{Key: taintKey}), "does not tolerate"},
	"it tolerates another claim": {
		tolerations(corev1.Toleration{Key: clustersettings.TaintPrefix + "x", Operator: corev1.TolerationOpExists}),
		"does not tolerate",
	},

	"an emptyDir": {
		aPod(func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}),
		"has an emptyDir",
	},
	"a claim that is deleted with the pod": {
		aPod(func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
		}),
		"an ephemeral volume, which would be lost",
	},
	"files in another volume's directory": {
		another(answered(true, ""), finding{reason: "TargetNotEmpty", message: ""}),
		"claim other, too: no new pod is known to end TargetNotEmpty",
	},
	"a container in another volume's": {
		another(answered(true, ""), shutdown, finding{reason: "ContainerOnBareDirectory", message: ""}),
		"ContainerOnBareDirectory",
	},
	"another volume, sick of what": {another(answered(true, "")), "did not say what it found"},
	"very many other volumes": {
		func(e *evidence) { e.others = make([]otherVolume, 21); fillOthers(e.others) },
		"more than 20 other volumes",
	},
	"another claim's mode": {
		func(e *evidence) {
			another(answered(false, ""))(e)
			annotate(e.others[0].claim, modeKey, "check")
		},
		"PersistentVolumeClaim other",
	},
	"another volume forbids it": {
		func(e *evidence) {
			another(answered(false, ""))(e)
			annotate(e.others[0].pv, evictKey, "false")
		},
		"PersistentVolume pv",
	},

	"the node did not answer": {
		func(e *evidence) { e.asked = hindered(ReasonNodeNotReady, passing, "down") },
		"nothing was found on node node-1 that pods may be evicted for: down",
	},
	"healthy": {func(e *evidence) { e.asked = answered(false, "healthy") }, "nothing was found"},
	"the device is gone": {
		found(shutdown, finding{reason: "DeviceMissing", message: "gone"}),
		"no new pod is known to end DeviceMissing",
	},
	"the device does not answer": {found(shutdown, finding{reason: "DeviceReadError", message: "EIO"}), "DeviceReadError"},
	"no path to the device":      {found(shutdown, finding{reason: "PathsFailed", message: ""}), "PathsFailed"},
	"the server does not answer": {found(shutdown, finding{reason: "ServerUnreachable", message: ""}), "ServerUnreachable"},
	"no answer":                  {found(shutdown, finding{reason: "NotResponding", message: ""}), "NotResponding"},
	"files in a bare directory":  {found(shutdown, finding{reason: "TargetNotEmpty", message: ""}), "TargetNotEmpty"},
	"a container wrote into it": {
		found(shutdown, finding{reason: "ContainerOnBareDirectory", message: ""}),
		"ContainerOnBareDirectory",
	},
	"a smaller device":       {found(shutdown, finding{reason: "DeviceSizeChanged", message: ""}), "DeviceSizeChanged"},
	"a part could not judge": {found(shutdown, finding{reason: "ProviderFailed", message: ""}), "ProviderFailed"},
	"stale in a container":   {found(finding{reason: "StaleInContainers", message: ""}), "StaleInContainers"},
	"nobody knows what ends it": {
		found(finding{reason: "ReadOnlyFilesystem", message: "target: the mount is read-only, recorded was read-write"}),
		"no new pod is known to end ReadOnlyFilesystem",
	},
	"stale in another pod": {
		found(finding{reason: "StaleInContainers", newPod: "z-uid"}),
		"no new pod is known to end StaleInContainers",
	},
	"stale, and a pod stays": {
		func(e *evidence) {
			stale(e)
			e.pods[1].OwnerReferences = nil
		},
		"pod b has no controller",
	},
	"stale, and no driver": {func(e *evidence) { stale(e); e.notReady = "kube-system/driver-x" }, "is not ready"},
	"stale, and not asked for": {
		func(e *evidence) { stale(e); e.settings["evict"] = "drivers: [driver]\nreasons: [IOError]" },
		"StaleInContainers is not among",
	},
	"a reason nobody asked for": {
		found(finding{reason: "FilesystemErrors", message: "ext4 counted 2 errors", newStage: true}),
		"nothing was found",
	},
	"a reason that is not set": {
		func(e *evidence) { e.settings["evict"] = "drivers: [driver]\nreasons: [IOError]" },
		"FilesystemShutdown is not among the reasons",
	},
	"no reasons are set": {
		func(e *evidence) { e.settings["evict"] = "drivers: [driver]\nreasons: []" },
		"FilesystemShutdown is not among the reasons",
	},
	"four volumes of the backend": {
		func(e *evidence) { e.sick++ },
		"more than 3 volumes of driver driver",
	},
}

// TestNoPodIsEvicted for each of the reasons not to. Each change of good evidence alone is
// enough.
func TestNoPodIsEvicted(t *testing.T) {
	if why := goodEvidence().refused(); why != "" {
		t.Fatal(why)
	}
	for name, tc := range evictionRefusals {
		e := goodEvidence()
		tc.change(e)
		if why := e.refused(); !strings.Contains(why, tc.why) || why == "" {
			t.Errorf("%s: got %q, want %q", name, why, tc.why)
		}
	}
}

// stale is a volume that one of two pods has of before.
func stale(e *evidence) {
	e.pods = append(e.pods, *appPod("node-1", "b"))
	e.asked.found = []finding{{reason: "StaleInContainers", newPod: "b-uid"}}
}

func fillOthers(others []otherVolume) {
	for i := range others {
		others[i].asked = answered(false, "")
		others[i].claim, others[i].pv = boundClaim()
	}
}

func fill(pods []corev1.Pod) {
	for i := range pods {
		pods[i] = *appPod("node-1", "a")
	}
}

// TestPodsAreEvictedFor what a new stage ends.
func TestPodsAreEvictedFor(t *testing.T) {
	for name, change := range map[string]func(*evidence){
		"read-only": func(e *evidence) {
			e.asked.found = []finding{{reason: "ReadOnlyFilesystem", newStage: true}, {reason: "FilesystemErrors", newStage: true}}
		},
		"a container that has the instance, too": func(e *evidence) {
			e.asked.found = append(e.asked.found, finding{reason: "StaleInContainers", newPod: "a-uid"})
		},
		"one that is ending": func(e *evidence) {
			e.begun = []types.UID{"a-uid", "ending"}
			e.asked.found = append(e.asked.found, finding{reason: "StaleInContainers", newPod: "ending"})
		},
		"stale in one of the pods, and a taint would do harm": func(e *evidence) {
			stale(e)
			e.pods[0].OwnerReferences, e.daemons, e.twins = nil, nil, []string{"pv-2"}
			e.pods = append(e.pods, *appPod("node-2", "c"))
		},
		"stale, with errors that nobody asked for": func(e *evidence) {
			stale(e)
			e.pods[0].OwnerReferences = nil // it stays
			e.asked.found = append(e.asked.found, finding{reason: "FilesystemErrors", newStage: true})
		},
		"errors, asked for": func(e *evidence) {
			e.settings["evict"] = "drivers: [driver]\nreasons: [FilesystemErrors]"
			e.asked.found[0].reason = "FilesystemErrors"
		},
		"allowed by all": func(e *evidence) {
			e.namespace.Annotations = map[string]string{clustersettings.EvictAnnotation: "true", clustersettings.ModeAnnotation: "heal"}
			e.pods[0].Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "true", "karpenter.sh/do-not-disrupt": "false"}
		},
		"an emptyDir, safe to evict": func(e *evidence) {
			e.pods[0].Annotations = map[string]string{safeToEvict: "true"}
			e.pods[0].Spec.Volumes = append(e.pods[0].Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		},
		"another volume shut down, too": func(e *evidence) {
			e.others = []otherVolume{{e.volume, e.asked}}
		},
		"a StatefulSet": func(e *evidence) {
			e.pods[0].OwnerReferences = ownedBy("StatefulSet", "db")
		},
		"a DaemonSet by key": func(e *evidence) {
			e.daemons[0].Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: taintKey, Operator: corev1.TolerationOpExists}}
		},
		"a pod that will run elsewhere": func(e *evidence) { e.pods = append(e.pods, *appPod("", "pending")) },
	} {
		e := goodEvidence()
		change(e)
		if why := e.refused(); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
}
