package why

import (
	"context"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// rpcError is how kubelet and COSI tell what a driver answered:
//
//	MountVolume.SetUp failed for volume "pv" : rpc error: code = Aborted desc = an operation is pending
//	                                           (1)             (2)            (3)
//
// 1: grpc-go's words, 2: the code, 3: the driver's words.
var rpcError = regexp.MustCompile(`rpc error: code = (\w+) desc = `)

func codeIn(message string) string {
	if found := rpcError.FindStringSubmatch(message); found != nil {
		return found[1]
	}
	return ""
}

// newest returns the last event of each reason about an object.
func (a *api) newest(ctx context.Context, uid string) (map[string]*corev1.Event, error) {
	newest := map[string]*corev1.Event{}
	err := each(ctx, a, events, a.namespace, "involvedObject.uid="+uid, func(e *corev1.Event) {
		if had := newest[e.Reason]; had == nil || !timeOf(had).After(timeOf(e)) {
			newest[e.Reason] = e
		}
	})
	return newest, err
}

// timeOf returns when something happened last: recorders of the old and of the new kind of
// events keep that in different fields.
func timeOf(e *corev1.Event) time.Time {
	latest := e.CreationTimestamp.Time
	for _, at := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if at.After(latest) {
			latest = at
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(latest) {
		latest = e.Series.LastObservedTime.Time
	}
	return latest
}

// events reads what scheduler, attach-detach controller, kubelet and node-healer say of the
// pod.
func (p *podCase) events(ctx context.Context) {
	newest, err := p.newest(ctx, string(p.pod.UID))
	if !p.read("events of the pod", err) {
		return
	}
	describe := p.kubectl("describe pod " + p.pod.Name)
	for reason, e := range newest {
		said := e.Message + " (" + timeOf(e).UTC().Format(time.RFC3339) + ")"
		switch {
		case reason == "FailedScheduling" && p.pod.Spec.NodeName == "":
			p.because("NotScheduled", "no node for the pod: "+said, describe)
		case reason == "FailedAttachVolume" && p.mounting && strings.Contains(e.Message, "Multi-Attach"):
			p.because("AttachedElsewhere", said, "kubectl get volumeattachments. The node that has it must be known to have stopped writing before it goes elsewhere")
		case reason == "FailedAttachVolume" && p.mounting:
			p.because("AttachFailed", said, describe+"; the log of the driver's controller (csi-attacher)")
		case (reason == "FailedMount" || reason == "FailedMapVolume") && p.mounting:
			p.mountFailed(e.Message, said)
		case reason == "FailedKillPod" && p.stopping:
			p.because("StopFailed", said, "see on the node whether a process of it waits in the kernel")
		case reason == "VolumeAbnormal" && !overtaken(newest, e, "VolumeHealed", "VolumeHealthy"):
			p.because("VolumeUnhealthy", "node-healer: "+said, p.Program+" explain REASON says what each reason means")
		}
	}
}

func overtaken(newest map[string]*corev1.Event, e *corev1.Event, by ...string) bool {
	for _, reason := range by {
		if other := newest[reason]; other != nil && timeOf(other).After(timeOf(e)) {
			return true
		}
	}
	return false
}

// mountFailed says what the answer of a driver to kubelet means.
func (p *podCase) mountFailed(message, said string) {
	code := codeIn(message)
	switch {
	case strings.Contains(message, "not found in the list of registered CSI drivers"):
		p.because("DriverNotRegistered", said, p.driverLog())
	case code == "Aborted":
		p.because("DriverBusy", "the driver is still at work on an earlier call for the volume, and answers ABORTED: "+said,
			"wait: kubelet calls again. If it lasts, that earlier call hangs: see on the node what it waits for", p.driverLog())
	case code == "DeadlineExceeded", code == "Unavailable":
		p.because("DriverSilent", "the driver did not answer kubelet: "+said, p.driverLog(), keepDriver)
	default:
		p.because("MountFailed", said, p.kubectl("describe pod "+p.pod.Name), p.driverLog())
	}
}

// keepDriver is said wherever a person may think of a restart.
const keepDriver = "before its pod is restarted: where FUSE daemons run in that pod, each volume of this driver on the node goes away with it"
