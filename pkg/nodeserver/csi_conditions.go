package nodeserver

import (
	"context"
	"encoding/json"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// tellCures says beside an answer what ends each condition. The controller evicts pods only
// where that ends all of them. What is too long for a trailer is not said: a client would
// refuse the whole answer, and pods are not evicted for a part of it.
func tellCures(ctx context.Context, d healer.Diagnosis) {
	if text, err := json.Marshal(cures(d)); err == nil && len(d.Conditions) > 0 && len(text) <= maxFullBytes {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(healerpb.TrailerConditions, string(text))) // a call without a stream has none
	}
}

// cures returns what ends each condition; a condition that is not among them, nothing here
// knows what ends.
func cures(d healer.Diagnosis) (all []healerpb.Condition) {
	add := func(reason healer.Reason, newStage bool, newPod string) {
		next := healerpb.Condition{Reason: printable.Line(string(reason), maxReasonBytes), NewStage: newStage, NewPod: newPod}
		if !slices.Contains(all, next) {
			all = append(all, next)
		}
	}
	for _, c := range d.Conditions {
		switch c.Reason {
		case healer.ContainerUnverified: // which names the pod of one container only
		case healer.StaleInContainers:
			add(c.Reason, false, staleIn(d, c))
		default:
			add(c.Reason, d.Case.NewStageEnds(c), "")
		}
	}
	for _, u := range d.Case.Unverified {
		pod := u.PodUID
		if u.Why == facts.WhyNoAnswer { // its processes may never end
			pod = ""
		}
		add(healer.ContainerUnverified, false, pod)
	}
	for range d.Case.UnverifiedStart { // these may have written to the bare directory
		add(healer.ContainerUnverified, false, "")
	}
	return all
}

// staleIn returns the pod whose container has a dead instance; empty where a step ends that,
// or where a process of the container may wait for that instance and never end.
func staleIn(d healer.Diagnosis, cond healer.Condition) string {
	p, _ := d.Case.MountPoint(cond.MountPoint)
	healed := slices.ContainsFunc(d.Offers(), func(s healer.Step) bool {
		return s.MountPoint.Path == cond.MountPoint && slices.Contains(s.Heals, cond.Reason)
	})
	if healed || p.InContainer == nil || p.InContainer.Probe.TimedOut {
		return ""
	}
	return p.PodUID
}
