package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

const (
	component = "node-healer"
	// maxEventPods bounds the pods on which one message is recorded.
	maxEventPods = 16
	// maxCorrelated objects are remembered by the recorder with their last events.
	maxCorrelated = 256
	// similarEvents, which differ only in their text, are sent before such events are
	// combined.
	similarEvents = 5
	// combinedPrefix stands before the text of combined events.
	combinedPrefix = "(combined from similar events): "
)

// newRecorder returns client-go's recorder of events, and a function that stops it.
// It drops events when too many wait, and gives up on one after about two minutes
// without an API.
func (r *reporter) newRecorder(ctx context.Context) (recorder record.EventRecorder, shutdown func()) {
	ctx, cancel := context.WithCancel(ctx)
	broadcaster := record.NewBroadcaster(
		// No logger: the sink logs errors itself, without the whole event. No
		// cancellation: shutdown stops it.
		record.WithContext(klog.NewContext(context.WithoutCancel(ctx), klog.Logger{})),
		record.WithCorrelatorOptions(record.CorrelatorOptions{
			LRUCacheSize: maxCorrelated,
			MaxEvents:    similarEvents,
			MessageFunc:  func(e *corev1.Event) string { return line(combinedPrefix + e.Message) },
		}),
	)
	broadcaster.StartRecordingToSink(&sink{ctx: ctx, reporter: r})
	recorder = broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component, Host: r.node})
	return recorder, func() {
		cancel()
		broadcaster.Shutdown()
	}
}

type sink struct {
	// ctx ends with the recorder: record.EventSink's methods have none.
	ctx      context.Context
	reporter *reporter
	// logged is the last error that was logged.
	logged string
}

func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.send(e, request{Verb: "create", GroupResource: corev1.Resource("events"), Namespace: e.Namespace}, s.reporter.client.core.Post().Body(e))
}

func (s *sink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	r := request{Verb: "patch", GroupResource: corev1.Resource("events"), Namespace: e.Namespace, Name: e.Name}
	return s.send(e, r, s.reporter.client.core.Patch(types.StrategicMergePatchType).Body(patch))
}

// Update implements record.EventSink; the recorder does not use it.
func (s *sink) Update(e *corev1.Event) (*corev1.Event, error) { return s.Create(e) }

// send returns errors as they are: the recorder tries again unless the API itself sent the
// error, which it tells by the type *StatusError.
func (s *sink) send(e *corev1.Event, r request, verb *rest.Request) (*corev1.Event, error) {
	stored := &corev1.Event{}
	err := s.reporter.do(s.ctx, r, verb, stored)
	if err == nil {
		s.logged = ""
		return stored, nil
	}
	expected := apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	if !expected && s.ctx.Err() == nil && err.Error() != s.logged {
		klog.ErrorS(err, "The API does not take an event", "reason", e.Reason, "object", klog.KRef(e.InvolvedObject.Namespace, e.InvolvedObject.Name))
		s.logged = err.Error()
	}
	return nil, err
}
