package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// healthRefresh is how often lastChecked is renewed while nothing changes. Each
	// write goes to all watchers of claims, so it is rare; the controller's clean-up
	// must wait longer than this.
	healthRefresh = time.Hour
	// healthJitter is the part of it by which a node's claims are spread over time.
	healthJitter = 0.2
)

// errNoClaim says that a claim does not exist, or that another one has its name.
var errNoClaim = errors.New("the claim is gone")

// evictable returns the reasons for which the controller may evict pods: none where that would not
// end all that the last check found, and all that it could not find out, since a job would only be
// refused, again and again.
func evictable(c volumeConditions, last healer.Diagnosis) []string {
	cures := last.Cures()
	for _, found := range last.AllConditions() {
		if !slices.ContainsFunc(cures, func(c healer.Cure) bool { return c.Reason == found.Reason }) {
			return nil
		}
	}
	if slices.ContainsFunc(cures, func(c healer.Cure) bool { return !c.NewStage && c.NewPod == "" }) {
		return nil
	}
	return slices.DeleteFunc(strings.Split(c.reasons(), ","), func(reason string) bool { return !slices.Contains(clustersettings.EvictReasons, reason) })
}

// annotation is what is known of a claim's annotation.
type annotation struct {
	// claim is empty while the annotation is unknown.
	claim        types.UID
	state, since string
	evictable    []string
	// due is when it is written again even if nothing changed.
	due time.Time
}

// covers returns whether nothing has to be written for the volume's last check.
func (a annotation) covers(v volume) bool {
	return a.state == v.state && slices.Equal(a.evictable, v.evictable) && v.checked.Before(a.due)
}

// annotate writes the state of a volume to its claim if it changed or is due, and returns
// what the claim has, also with an error. Without a claim nothing is written, and the next
// check tries again.
func (r *reporter) annotate(ctx context.Context, v volume, claim *corev1.ObjectReference) (annotation, error) {
	node, known := r.cluster.nodeUID()
	if claim == nil || !known || v.state == "" || len(v.messages) == 0 && v.annotation.covers(v) {
		return v.annotation, nil
	}
	now, err := r.update(ctx, v, *claim, volumehealth.Annotation+string(node))
	if errors.Is(err, errNoClaim) { // not tried again at every check
		return annotation{state: v.state, evictable: v.evictable, due: v.checked.Add(refresh())}, nil
	}
	return now, err
}

// update reads the annotation first if it is unknown: an earlier process on this
// node may have written it, and since when the state is as it is. It reads it also
// while events wait, which go only to an API that answers.
func (r *reporter) update(ctx context.Context, v volume, claim corev1.ObjectReference, name string) (annotation, error) {
	before := v.annotation
	if before.claim != claim.UID || len(v.messages) > 0 {
		if err := r.pace.Wait(ctx); err != nil {
			return before, err
		}
		value, err := r.client.claimAnnotation(ctx, claim, name)
		if err != nil {
			return before, err
		}
		if before = parseAnnotation(claim.UID, value); before.covers(v) {
			return before, nil
		}
	}
	checked := v.checked.UTC().Format(time.RFC3339)
	now := annotation{claim: claim.UID, state: v.state, since: checked, evictable: v.evictable, due: v.checked.Add(refresh())}
	if before.state == now.state && before.since != "" {
		now.since = before.since
	}
	value, err := json.Marshal(volumehealth.Value{State: now.state, LastChecked: checked, Since: now.since, Node: r.node, Evictable: now.evictable})
	if err != nil {
		return before, fmt.Errorf("encode the health of a volume: %w", err)
	}
	if err := r.pace.Wait(ctx); err != nil {
		return before, err
	}
	if err := r.client.annotateClaim(ctx, claim, name, string(value)); err != nil {
		return before, err
	}
	return now, nil
}

// parseAnnotation returns an annotation that is due at once if the value cannot be
// read, or was written by a clock that is ahead.
func parseAnnotation(claim types.UID, value string) annotation {
	var s volumehealth.Value
	if json.Unmarshal([]byte(value), &s) != nil {
		return annotation{claim: claim}
	}
	a := annotation{claim: claim, state: s.State, since: s.Since, evictable: s.Evictable}
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

// claimAnnotation returns the value of one annotation of a claim.
func (c *client) claimAnnotation(ctx context.Context, claim corev1.ObjectReference, key string) (string, error) {
	var now corev1.PersistentVolumeClaim
	err := c.do(ctx, request{Verb: "get", Resource: claimKind.resource, Namespace: claim.Namespace, Name: claim.Name}, c.core.Get(), &now)
	if apierrors.IsNotFound(err) || err == nil && (now.UID != claim.UID || now.DeletionTimestamp != nil) {
		return "", errNoClaim
	}
	return now.Annotations[key], err
}

// annotateClaim sets one annotation of a claim and leaves the others alone.
func (c *client) annotateClaim(ctx context.Context, claim corev1.ObjectReference, key, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         claim.UID, // so that another claim of that name is refused
		"annotations": map[string]string{key: value},
	}})
	if err != nil {
		return fmt.Errorf("encode the annotation of a claim: %w", err)
	}
	r := request{Verb: "patch", Resource: claimKind.resource, Namespace: claim.Namespace, Name: claim.Name}
	err = c.do(ctx, r, c.core.Patch(types.MergePatchType).Body(patch), &corev1.PersistentVolumeClaim{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || isOtherUID(err) {
		return errNoClaim
	}
	return err
}

// isOtherUID returns whether a patch was refused because the object has another
// UID. The API answers that with Invalid (422), as it does much else.
func isOtherUID(err error) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &answer) || answer.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(answer.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}
