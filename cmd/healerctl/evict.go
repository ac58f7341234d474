package main

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// mode is that of a heal: a dry run only checks, or says which pods would be evicted.
func (f *claimFlags) mode() v1alpha1.Mode {
	switch {
	case f.evict:
		return v1alpha1.ModeEvict
	case f.dryRun:
		return v1alpha1.ModeCheck
	}
	return v1alpha1.ModeHeal
}

func (f *claimFlags) spec(mode v1alpha1.Mode, claim string) v1alpha1.VolumeHealJobSpec {
	return v1alpha1.VolumeHealJobSpec{
		Target: v1alpha1.TargetSpec{PersistentVolumeClaim: claim}, Mode: mode, DryRun: f.dryRun && mode == v1alpha1.ModeEvict,
		TTLSecondsAfterFinished: ptr.To(int32(jobKept.Seconds())),
	}
}

// evicts says what a job that evicts does now; empty: it is none.
func evicts(job *v1alpha1.VolumeHealJob) string {
	now := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionProgressing)
	if job.Spec.Mode != v1alpha1.ModeEvict || now == nil {
		return ""
	}
	return printable.Line(now.Reason+": "+now.Message, maxCellBytes)
}
