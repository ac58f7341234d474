package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

const (
	// healthRefresh is how often lastChecked is renewed while nothing changes. Each
	// write goes to all watchers of claims, so it is rare; the controller's clean-up
	// must wait longer than this.
	healthRefresh = time.Hour
	// healthJitter is the part of it by which a node's claims are spread over time.
	healthJitter = 0.2
)

func stateOf(c volumeConditions) string {
	if len(c) > 0 {
		return volumehealth.Unhealthy
	}
	return volumehealth.Healthy
}

// annotation is what is known of a claim's annotation.
type annotation struct {
	// claim is empty while the annotation is unknown.
	claim        types.UID
	state, since string
	// due is when it is written again even if nothing changed.
	due time.Time
}

// covers returns whether nothing has to be written for a check.
func (a annotation) covers(c check) bool { return a.state == c.state && c.at.Before(a.due) }

// annotate writes the state of a volume to its claim if it changed or is due. nil:
// there is no claim to write to.
func (r *reporter) annotate(ctx context.Context, key volumeKey, claim *corev1.ObjectReference) error {
	node, known := r.cluster.nodeUID()
	if claim == nil || !known {
		r.record(key, nil) // the next check tries again, also after a write that was refused
		return nil
	}
	err := r.update(ctx, key, *claim, volumehealth.Annotation+string(node))
	if ctx.Err() == nil {
		r.record(key, err)
	}
	return err
}

// update reads the annotation first if it is unknown: an earlier process on this
// node may have written it, and since when the state is as it is. It reads it also
// while events wait, which go only to an API that answers.
func (r *reporter) update(ctx context.Context, key volumeKey, claim corev1.ObjectReference, name string) error {
	var latest check
	var before annotation
	var waits bool
	if !r.with(key, func(v *volume) { latest, before, waits = v.latest, v.annotation, len(v.messages) > 0 }) {
		return nil
	}
	switch {
	case waits:
		before.claim = ""
	case before.covers(latest):
		return nil
	}
	if before.claim != claim.UID {
		if err := r.pace.Wait(ctx); err != nil {
			return err
		}
		value, err := r.client.ClaimAnnotation(ctx, claim, name)
		if err != nil {
			return r.unlessGone(key, latest, err)
		}
		before = parseAnnotation(claim.UID, value)
		r.store(key, before)
		if before.covers(latest) {
			return nil
		}
	}
	now := annotation{claim: claim.UID, state: latest.state, since: latest.at.UTC().Format(time.RFC3339), due: latest.at.Add(refresh())}
	if before.state == now.state && before.since != "" {
		now.since = before.since
	}
	value, err := json.Marshal(volumehealth.Value{State: now.state, LastChecked: latest.at.UTC().Format(time.RFC3339), Since: now.since, Node: r.node})
	if err != nil {
		return fmt.Errorf("encode the health of a volume: %w", err)
	}
	if err := r.pace.Wait(ctx); err != nil {
		return err
	}
	if err := r.client.AnnotateClaim(ctx, claim, name, string(value)); err != nil {
		return r.unlessGone(key, latest, err)
	}
	if r.store(key, now) {
		r.queue.Add(key)
	}
	return nil
}

// unlessGone returns err, unless there is no such claim any more: that is not tried
// again at every check.
func (r *reporter) unlessGone(key volumeKey, latest check, err error) error {
	if !errors.Is(err, errNoClaim) {
		return err
	}
	r.store(key, annotation{state: latest.state, due: latest.at.Add(refresh())})
	return nil
}

// store records what a claim has, and returns whether a check that came meanwhile
// differs from it.
func (r *reporter) store(key volumeKey, a annotation) (differs bool) {
	r.with(key, func(v *volume) { v.annotation, differs = a, !a.covers(v.latest) })
	return differs
}

// record keeps why the API refused an annotation; nil: it did not. An error is logged
// if it is new.
func (r *reporter) record(key volumeKey, err error) {
	var text, before string
	if err != nil {
		text = err.Error()
	}
	r.with(key, func(v *volume) { before, v.failed = v.failed, text })
	if err != nil && text != r.logged && text != before {
		klog.ErrorS(err, "Cannot write the health of a volume to its claim")
	}
	r.logged = text
}

// parseAnnotation returns an annotation that is due at once if the value cannot be
// read, or was written by a clock that is ahead.
func parseAnnotation(claim types.UID, value string) annotation {
	var s volumehealth.Value
	if json.Unmarshal([]byte(value), &s) != nil {
		return annotation{claim: claim}
	}
	a := annotation{claim: claim, state: s.State, since: s.Since}
	checked, err := time.Parse(time.RFC3339, s.LastChecked)
	if err == nil && checked.Before(time.Now()) {
		a.due = checked.Add(refresh())
	}
	return a
}

func refresh() time.Duration {
	return time.Duration(float64(healthRefresh) * (1 + healthJitter*(rand.Float64()-0.5))) //nolint:gosec // no secret
}

// isOutage returns whether an error is one of the API as a whole, and not of one
// request: 500 (InternalError) may be a webhook's.
func isOutage(err error) bool { return isUnavailable(err) && !apierrors.IsInternalError(err) }
