package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/internal/retry"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

const (
	// maxMessageBytes is the limit of messages in a job's status, and of an event's note.
	maxMessageBytes = 1024
	// saveTimeout bounds a write of the status, also while this process stops: what a
	// node said must not get lost.
	saveTimeout = 10 * time.Second
)

// The defaults of a job, as its schema has them.
const (
	defaultBackoffLimit  = 6
	defaultRetryDeadline = 600
	defaultTimeout       = 180
)

func (p *pass) timeout() time.Duration {
	return time.Duration(ptr.Deref(p.job.Spec.TimeoutSeconds, defaultTimeout)) * time.Second
}

// deadline is when the last try may begin.
func (p *pass) deadline() time.Time {
	if !p.until.IsZero() {
		return p.until
	}
	return p.job.Status.StartTime.Add(time.Duration(ptr.Deref(p.job.Spec.RetryDeadlineSeconds, defaultRetryDeadline)) * time.Second)
}

// record writes down what a try came to, and when the next one is.
func (p *pass) record(node *v1alpha1.NodeStatus, o outcome) {
	now := time.Now()
	before := node.Reason
	node.Abnormal, node.Reason, node.Code, node.Tier = o.abnormal, o.reason, o.code, string(o.class.Tier)
	node.Message = printable.Line(o.message, maxMessageBytes)
	node.Tries++
	node.LastTryTime, node.NextTryTime = ptr.To(metav1.NewTime(now)), nil
	if o.class == (api.Class{}) {
		return
	}
	after, again := retry.After(o.class, int(node.Tries))
	next := now.Add(wait.Jitter(max(after, o.after), retryJitter))
	if !again || node.Tries > ptr.Deref(p.job.Spec.BackoffLimit, defaultBackoffLimit) || next.After(p.deadline()) {
		return
	}
	node.NextTryTime = ptr.To(metav1.NewTime(next))
	message := fmt.Sprintf("node %s is tried again: %s", node.Node, o.message)
	p.progress(o.reason, message)
	if o.reason != before {
		p.tell(p.job, p.volume.claim, corev1.EventTypeWarning, o.reason, message)
	}
}

// verdict ends a job whose nodes need no other try.
func (p *pass) verdict() error {
	nodes := p.job.Status.Nodes
	abnormal := ""
	for _, n := range nodes {
		if n.Tier != "" {
			return &ending{reason: n.Reason, message: fmt.Sprintf("node %s (tried %d times): %s", n.Node, n.Tries, n.Message)}
		}
		if abnormal == "" && ptr.Deref(n.Abnormal, false) {
			abnormal = fmt.Sprintf("node %s: %s", n.Node, n.Message)
		}
	}
	end := &ending{reason: ReasonHealthy, message: fmt.Sprintf("the volume works on %d nodes", len(nodes)), succeeded: true}
	switch {
	case abnormal != "":
		end.reason, end.message = ReasonAbnormal, abnormal
	case len(nodes) == 1:
		end.message = fmt.Sprintf("node %s: %s", nodes[0].Node, nodes[0].Message)
	}
	return end
}

func (p *pass) end(ctx context.Context, e *ending) (ctrl.Result, error) {
	s := &p.job.Status
	s.CompletionTime = ptr.To(metav1.Now())
	kind, level := v1alpha1.ConditionFailed, corev1.EventTypeWarning
	if s.Result = v1alpha1.ResultFailed; e.succeeded {
		s.Result, kind = v1alpha1.ResultSucceeded, v1alpha1.ConditionComplete
	}
	if e.succeeded && e.reason != ReasonAbnormal {
		level = corev1.EventTypeNormal
	}
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, e.reason, e.message)
	p.condition(kind, metav1.ConditionTrue, e.reason, e.message)
	if err := p.save(ctx); err != nil {
		return ctrl.Result{}, err
	}
	p.jobs.WithLabelValues(string(p.job.Spec.Mode), string(s.Result), e.reason).Inc()
	claim := p.volume.claim
	if claim == nil { // it was not found
		p.tell(p.job, nil, level, e.reason, e.message)
	} else {
		p.tell(p.job, claim, level, e.reason, e.message)
		p.tell(claim, p.job, level, e.reason, fmt.Sprintf("%s of VolumeHealJob %s: %s", p.job.Spec.Mode, p.job.Name, e.message))
	}
	return p.expire(ctx, p.job)
}

func (p *pass) progress(reason, message string) {
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, reason, message)
}

func (p *pass) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&p.job.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: printable.Line(message, maxMessageBytes),
		ObservedGeneration: p.job.Generation,
	})
}

// save writes the status if it has changed. A job that was deleted has none.
func (p *pass) save(ctx context.Context) error {
	s := &p.job.Status
	s.Abnormal = nil
	answered := 0
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if finished(n) {
			answered++
		}
		if n.Abnormal != nil {
			s.Abnormal = ptr.To(*n.Abnormal || ptr.Deref(s.Abnormal, false))
		}
	}
	if len(s.Nodes) > 0 {
		s.Answered = fmt.Sprintf("%d/%d", answered, len(s.Nodes))
	}
	if equality.Semantic.DeepEqual(p.saved.Status, *s) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	change, wanted := client.MergeFrom(p.saved), s.DeepCopy()
	err := p.cfg.Writer.Status().Patch(ctx, p.job, change)
	p.job.Status = *wanted // the answer has times of whole seconds
	p.saved = p.job.DeepCopy()
	return client.IgnoreNotFound(err)
}

// eventsPerSecond and eventsAtOnce bound the events of jobs: client-go keeps each for six minutes, also
// of a job that was deleted at once, and who may create jobs may do that again and again.
const eventsPerSecond, eventsAtOnce = 10, 500

// tell makes an event, unless there are too many.
func (p *pass) tell(on, related client.Object, level, reason, message string) {
	if p.told.Allow() {
		p.tellAlways(on, related, level, reason, message)
	}
}

// tellAlways makes an event of an act, which the limits for evictions bound.
func (p *pass) tellAlways(on, related client.Object, level, reason, message string) {
	p.cfg.Events.Eventf(on, related, level, reason, string(p.job.Spec.Mode), "%s", printable.Line(message, maxMessageBytes))
}
