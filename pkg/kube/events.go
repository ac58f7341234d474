package kube

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	eventnames "k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

const (
	component = "node-healer"
	// maxEvents wait to be sent, each with a text of at most a kilobyte.
	maxEvents = 256
	// maxEventPods bounds what one volume's news costs.
	maxEventPods = 16
	// eventQPS and eventBurst leave the API to those with questions when all
	// volumes of many nodes fail at once.
	eventQPS   = 5
	eventBurst = 20
	// correlated objects and their last messages are remembered.
	correlated = 256
	// similarEvents, which differ in their message only, are told one by one
	// before they are combined.
	similarEvents = 5
	// combined stands before the message of events that were combined.
	combined = "(combined from similar events): "
)

// event is news of a volume, on its way.
type event struct {
	news
	volume volumeKey
	pods   []string
	at     time.Time
}

// events sends them one by one. What cannot be sent because the API does not
// answer waits, and has its own time all the same.
//
// Client-go's broadcaster would do, but its goroutines have no owner, and it
// gives up after two minutes. What it is good for, telling what was told
// before, is its correlator.
type events struct {
	client *Client
	cfg    ReporterConfig
	forget func(volumeKey)
	queue  chan event
	lost   atomic.Int64
	pace   flowcontrol.RateLimiter
	same   *record.EventCorrelator
	// refused is what the API says of late.
	refused refusals
	// number makes names: a time in nanoseconds, and never the same one twice.
	number int64
}

func newEvents(c *Client, cfg ReporterConfig, forget func(volumeKey)) *events {
	return &events{
		client: c, cfg: cfg, forget: forget,
		queue: make(chan event, maxEvents),
		pace:  flowcontrol.NewTokenBucketRateLimiter(eventQPS, eventBurst),
		same: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{
			LRUCacheSize: correlated,
			MaxEvents:    similarEvents,
			MessageFunc:  func(e *corev1.Event) string { return line(combined + e.Message) },
		}),
	}
}

// offer is false when too many wait already.
func (e *events) offer(one event) bool {
	select {
	case e.queue <- one:
		return true
	default:
		e.lost.Add(1)
		return false
	}
}

func (e *events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case one := <-e.queue:
			e.tell(ctx, one)
		}
		if lost := e.lost.Swap(0); lost > 0 {
			klog.InfoS("Too many events wait to be sent, the next checks say it again", "lost", lost)
		}
	}
}

// tell sends one event for each object.
func (e *events) tell(ctx context.Context, one event) {
	subjects, found := e.cfg.Find(ctx, one.volume.driver, one.volume.id, one.pods)
	if !found {
		klog.V(2).InfoS("No object to report on", "driver", one.volume.driver, "volumeID", one.volume.id)
		e.forget(one.volume)
		return
	}
	objects := slices.Clone(subjects.Pods[:min(len(subjects.Pods), maxEventPods)])
	if subjects.Claim != nil {
		objects = append(objects, *subjects.Claim)
	}
	for _, object := range objects {
		told, err := e.same.EventCorrelate(e.about(object, one))
		if err != nil || told.Skip {
			continue // this object has had its share
		}
		if err := e.deliver(ctx, told); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "The API does not take an event", "reason", one.reason, "object", klog.KRef(object.Namespace, object.Name))
		}
	}
}

func (e *events) about(object corev1.ObjectReference, one event) *corev1.Event {
	at := metav1.NewTime(one.at)
	e.number = max(e.number+1, time.Now().UnixNano())
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: object.Namespace,
			Name:      eventnames.GenerateEventName(object.Name, e.number),
		},
		InvolvedObject:      object,
		Type:                one.severity,
		Reason:              one.reason,
		Message:             one.text,
		FirstTimestamp:      at,
		LastTimestamp:       at,
		Count:               1,
		Source:              corev1.EventSource{Component: component, Host: e.cfg.Node},
		ReportingController: component,
		ReportingInstance:   e.cfg.Node,
	}
}

// deliver tries until the API has taken it or has said for good that it does
// not.
func (e *events) deliver(ctx context.Context, told *record.EventCorrelateResult) error {
	backoff := soon
	for {
		if err := e.pace.Wait(ctx); err != nil {
			return err
		}
		stored, err := e.send(ctx, told)
		switch {
		case err == nil:
			e.refused.forget()
			e.same.UpdateState(stored)
			return nil
		case apierrors.IsAlreadyExists(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return nil
		case ctx.Err() != nil || e.refused.final(err):
			return err
		}
		pause(ctx, backoff.Step())
	}
}

// send counts an event that is there already, and makes one that is not.
func (e *events) send(ctx context.Context, told *record.EventCorrelateResult) (*corev1.Event, error) {
	what := request{Resource: "events", Namespace: told.Event.Namespace}
	if told.Event.Count > 1 {
		counted := what
		counted.Name = told.Event.Name
		var stored corev1.Event
		err := e.client.patch(ctx, counted, types.StrategicMergePatchType, told.Patch, &stored)
		if !apierrors.IsNotFound(err) {
			return &stored, err
		}
	}
	fresh := told.Event.DeepCopy()
	fresh.ResourceVersion = ""
	return fresh, e.client.create(ctx, what, fresh)
}
