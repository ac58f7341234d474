package why

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/kube"
	"github.com/csi-addons/node-healer/internal/intree"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

// volume finds out how one volume of the pod stands: its claim, and what the nodes say of it.
func (p *podCase) volume(ctx context.Context, v corev1.Volume) {
	name := intree.ClaimOf(p.pod, &v)
	switch {
	case v.CSI != nil:
		p.volumes, p.well = append(p.volumes, volume{driver: v.CSI.Driver}), append(p.well, time.Time{})
		return
	case name == "":
		return
	}
	claim, err := kube.Get[corev1.PersistentVolumeClaim](ctx, p.Client, kube.Claims, p.Namespace, name)
	if apierrors.IsNotFound(err) {
		p.add("ClaimNotFound", "claim "+name+" does not exist", p.kubectl("get pvc")+"; create the claim, or correct the pod's volume "+v.Name)
		return
	}
	if !p.read("claim "+name, err) {
		p.well = append(p.well, time.Time{})
		return
	}
	if claim.DeletionTimestamp != nil {
		p.add("FinalizerPending", fmt.Sprintf("claim %s was deleted, and goes once no pod uses it", name),
			fmt.Sprintf("before the last pod ends, if the data is to stay: kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"Retain\"}}'", cmp.Or(claim.Spec.VolumeName, "PV")))
	}
	switch claim.Status.Phase {
	case corev1.ClaimLost:
		p.lost(name, claim.Spec.VolumeName)
	case corev1.ClaimPending:
		p.pending(ctx, claim)
	default:
		p.bound(ctx, claim)
	}
}

func (p *podCase) lost(claim, pv string) {
	p.add("ClaimLost", fmt.Sprintf("claim %s is bound to PersistentVolume %s, which does not exist any more", claim, pv),
		"find out who deleted it, and whether the storage still has the volume; keep the claim until then: "+p.kubectl("get pvc "+claim+" -o yaml"),
		"if it has: create a PersistentVolume of the same name with its volumeHandle, claimRef and persistentVolumeReclaimPolicy Retain")
}

// pending says why a claim is not bound: the one that waits for it, or its driver, says so in
// events.
func (p *podCase) pending(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	newest, err := p.newest(ctx, string(claim.UID))
	says := "no event says why"
	if !p.read("events of claim "+claim.Name, err) {
		says = "why is in its events"
	}
	reason := "ClaimPending"
	for _, e := range []string{"ExternalProvisioning", "WaitForPodScheduled", "WaitForFirstConsumer", "FailedBinding", "ProvisioningFailed"} {
		if newest[said{reason: e}] != nil {
			reason, says = "ClaimPending", newest[said{reason: e}].Message
			if strings.HasPrefix(e, "WaitFor") {
				reason = "NotScheduled"
			}
		}
	}
	p.add(reason, "claim "+claim.Name+" is not bound: "+says,
		p.kubectl("describe pvc "+claim.Name)+"; kubectl get storageclass; the log of the driver's controller (csi-provisioner)")
}

func (p *podCase) bound(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	pv, err := kube.Get[corev1.PersistentVolume](ctx, p.Client, kube.Volumes, "", claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		p.lost(claim.Name, claim.Spec.VolumeName)
		return
	}
	shared := true
	if p.read("PersistentVolume "+claim.Spec.VolumeName, err) {
		// As the attach-detach controller takes it (IsMultiAttachAllowed in Kubernetes' pkg/volume/util).
		shared = len(pv.Spec.AccessModes) == 0 || slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany) || slices.Contains(pv.Spec.AccessModes, corev1.ReadOnlyMany)
		if csi := intree.CSI(pv); csi != nil {
			p.volumes = append(p.volumes, volume{claim.Name, pv.Name, csi.Driver, csi.VolumeHandle, shared})
		}
	}
	p.well = append(p.well, p.health(ctx, claim, shared))
}

// health says what the nodes say of a claim's volume: by their annotations, and by the last
// VolumeHealJob where that is newer. It returns when the pod's node last called it healthy. Of a volume
// that is not shared, the nodes that had it before say no more.
func (p *podCase) health(ctx context.Context, claim *corev1.PersistentVolumeClaim, shared bool) (well time.Time) {
	last := map[string]volumehealth.Value{} // by node: one that was registered anew has said more under its old UID
	for name, text := range claim.Annotations {
		var said volumehealth.Value
		if strings.HasPrefix(name, volumehealth.Annotation) && json.Unmarshal([]byte(text), &said) == nil && said.LastChecked >= last[said.Node].LastChecked {
			last[said.Node] = said
		}
	}
	if here := last[p.pod.Spec.NodeName]; here.State == volumehealth.Healthy {
		well, _ = time.Parse(time.RFC3339, here.LastChecked)
	}
	var sick []string
	var checked time.Time
	for _, said := range last {
		at, err := time.Parse(time.RFC3339, said.LastChecked)
		if err == nil && at.After(checked) {
			checked = at
		}
		switch {
		case said.Node != p.pod.Spec.NodeName && (err != nil || time.Since(at) >= volumehealth.StaleAfter || !shared && at.Before(well)):
			// The node had the volume once, and nothing takes away what it said last.
		case said.State != volumehealth.Healthy:
			sick = append(sick, fmt.Sprintf("%s on node %s since %s, checked %s", said.State, said.Node, said.Since, said.LastChecked))
		}
	}
	slices.Sort(sick)
	var job *v1alpha1.VolumeHealJob
	err := kube.Each(ctx, p.Client, kube.Jobs, p.Namespace, "", func(j *v1alpha1.VolumeHealJob) {
		if j.Spec.Target.PersistentVolumeClaim == claim.Name && (job == nil || job.CreationTimestamp.Before(&j.CreationTimestamp)) {
			job = j
		}
	})
	if !kube.UnknownKind(err) {
		p.read("VolumeHealJobs", err)
	}
	if job != nil && (job.Status.CompletionTime == nil || job.Status.CompletionTime.After(checked)) {
		for _, n := range job.Status.Nodes {
			if ptr.Deref(n.Abnormal, n.Code != "" && n.Code != "OK") {
				sick = append(sick, fmt.Sprintf("VolumeHealJob %s, node %s: %s", job.Name, n.Node, cmp.Or(n.Message, n.Reason)))
			}
		}
	}
	if len(sick) > 0 {
		p.add("VolumeUnhealthy", "claim "+claim.Name+": "+strings.Join(sick, "; "), p.Program+" heal pvc/"+claim.Name+" -n "+p.Namespace+", which does what is safe, and says what is not",
			p.Program+" explain REASON says what each reason means")
	}
	return well
}
