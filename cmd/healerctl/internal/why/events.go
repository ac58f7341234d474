package why

import (
	"cmp"
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/kube"
)

// rpcError is how kubelet and COSI tell what a driver answered:
//
//	MountVolume.SetUp failed for volume "pv" : rpc error: code = Aborted desc = an operation is pending
//	                                           (1)             (2)            (3)
//
// 1: grpc-go's words, 2: the code, 3: the driver's words.
var rpcError = regexp.MustCompile(`rpc error: code = (\w+) desc = `)

// codeIn returns the code in the spelling of the specifications: ABORTED; empty if there is none.
func codeIn(message string) string {
	found := rpcError.FindStringSubmatch(message)
	if found == nil {
		return ""
	}
	for number, name := range code.Code_name {
		if codes.Code(number).String() == found[1] { //nolint:gosec // from 0 to 16
			return name
		}
	}
	return found[1]
}

// said is what an event says: its reason, and the volume that kubelet and the attach-detach
// controller name in its message, as in the line above; empty in all others.
type said struct{ reason, volume string }

var namedVolume = regexp.MustCompile(`for volume "([^"]*)"`)

// newest returns the last event of each kind about an object.
func (a *api) newest(ctx context.Context, uid string) (map[said]*corev1.Event, error) {
	newest := map[said]*corev1.Event{}
	err := kube.Each(ctx, a.Client, kube.Events, a.Namespace, "involvedObject.uid="+uid, func(e *corev1.Event) {
		says := said{reason: e.Reason}
		if named := namedVolume.FindStringSubmatch(e.Message); named != nil {
			says.volume = named[1]
		}
		if had := newest[says]; had == nil || !timeOf(had).After(timeOf(e)) {
			newest[says] = e
		}
	})
	return newest, err
}

// timeOf returns when something happened last: recorders of the old and of the new kind of
// events keep that in different fields.
func timeOf(e *corev1.Event) time.Time {
	last := ptr.Deref(e.Series, corev1.EventSeries{}).LastObservedTime.Time
	return slices.MaxFunc([]time.Time{e.CreationTimestamp.Time, e.LastTimestamp.Time, e.EventTime.Time, last}, time.Time.Compare)
}

// noSandbox is the reason of kubelet's event where it has mounted all volumes, and then fails.
const noSandbox = "FailedCreatePodSandBox"

// events reads what scheduler, attach-detach controller, kubelet and node-healer say of the
// pod.
func (p *podCase) events(ctx context.Context) {
	newest, err := p.newest(ctx, string(p.pod.UID))
	if !p.read("events of the pod", err) {
		return
	}
	describe := p.kubectl("describe pod " + p.pod.Name)
	for _, about := range slices.SortedFunc(maps.Keys(newest), func(x, y said) int { return cmp.Or(cmp.Compare(x.reason, y.reason), cmp.Compare(x.volume, y.volume)) }) {
		e := newest[about]
		overtaken := func(by string) bool {
			later := newest[said{by, about.volume}]
			return later != nil && timeOf(later).After(timeOf(e))
		}
		text := e.Message + " (" + timeOf(e).UTC().Format(time.RFC3339) + ")"
		attaching := about.reason == "FailedAttachVolume" && p.mounting && !overtaken("SuccessfulAttachVolume")
		switch {
		case about.reason == "FailedScheduling" && p.pod.Spec.NodeName == "":
			p.add("NotScheduled", "no node for the pod: "+text, describe)
		case attaching && strings.Contains(e.Message, "Multi-Attach"):
			p.add("AttachedElsewhere", text, "kubectl get volumeattachments. The node that has it must be known to have stopped writing before it goes elsewhere")
		case attaching:
			p.add("AttachFailed", text, describe+"; the log of the driver's controller (csi-attacher)")
		case (about.reason == "FailedMount" || about.reason == "FailedMapVolume") && p.mounting:
			if sandbox := newest[said{reason: noSandbox}]; sandbox == nil || !timeOf(sandbox).After(timeOf(e)) {
				p.mountFailed(e.Message, text)
			}
		case about.reason == noSandbox && p.mounting:
			p.add("ContainerWaits", "the pod's volumes were mounted, and then no sandbox could be made: "+text, describe)
		case about.reason == "FailedKillPod" && p.stopping:
			p.add("StopFailed", text, "see on the node whether a process of it waits in the kernel")
		case about.reason == "VolumeAbnormal" && !overtaken("VolumeHealed") && !overtaken("VolumeHealthy") && !p.wellAfter(timeOf(e)):
			p.add("VolumeUnhealthy", "node-healer: "+text, p.Program+" explain REASON says what each reason means")
		}
	}
}

// wellAfter reports whether the node called all of the pod's volumes healthy after a time. A server
// that was started anew says so in annotations only: it does not know that they were sick.
func (p *podCase) wellAfter(t time.Time) bool {
	return len(p.well) > 0 && !slices.ContainsFunc(p.well, func(well time.Time) bool { return !well.After(t) })
}

// mountFailed says what the answer of a driver to kubelet means.
func (p *podCase) mountFailed(message, text string) {
	answered := codeIn(message)
	switch {
	case strings.Contains(message, "not found in the list of registered CSI drivers"):
		p.add("DriverNotRegistered", text, p.driverLog())
	case answered == code.Code_ABORTED.String():
		p.add("DriverBusy", "the driver is still at work on an earlier call for the volume, and answers ABORTED: "+text,
			"wait: kubelet calls again. If it lasts, that earlier call hangs: see on the node what it waits for", p.driverLog())
	case answered == code.Code_DEADLINE_EXCEEDED.String(), answered == code.Code_UNAVAILABLE.String():
		p.add("DriverSilent", "the driver did not answer kubelet: "+text, p.driverLog(), keepDriver)
	default:
		p.add("MountFailed", text, p.kubectl("describe pod "+p.pod.Name), p.driverLog())
	}
}

// keepDriver is said wherever a person may think of a restart.
const keepDriver = "before its pod is restarted: where FUSE daemons run in that pod, each volume of this driver on the node goes away with it"
