package cluster

import (
	"cmp"
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
	// maxHealthBytes is more than an annotation of ours has. What it says is kept, and anybody
	// who may write the claim may write more.
	maxHealthBytes = 1024
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
	claim types.UID
	volumehealth.Value
	// due is when it is written again even if nothing changed.
	due time.Time
}

// covers returns whether nothing has to be written for the volume's last check.
func (a annotation) covers(v volume) bool {
	return a.State == v.state && slices.Equal(a.Evictable, v.evictable) && v.checked.Before(a.due)
}

// annotate writes the state of a volume to its claim if it changed or is due, and returns
// what the claim has, as far as that is known, also with an error. Without a claim nothing
// is written, and the next check tries again.
//
// It reads the annotation first if it is unknown: an earlier process on this node may have
// written it, and since when the state is as it is. It reads it also while events wait,
// which go only to an API that answers.
func (r *reporter) annotate(ctx context.Context, v volume, claim *corev1.ObjectReference) (annotation, error) {
	node, has := r.cluster.nodeUID(), v.annotation
	if claim == nil || node == "" || v.state == "" || len(v.messages) == 0 && has.covers(v) {
		return has, nil
	}
	key, checked := volumehealth.Annotation+string(node), v.checked.UTC().Format(time.RFC3339)
	now := annotation{
		claim: claim.UID, due: v.checked.Add(refresh()),
		Value: volumehealth.Value{State: v.state, LastChecked: checked, Since: checked, Node: r.node, Evictable: v.evictable},
	}
	var err error
	if has.claim != claim.UID || len(v.messages) > 0 {
		if has, err = r.healthOf(ctx, claim, key); err == nil && has.covers(v) {
			return has, nil
		}
	}
	if err == nil {
		if has.State == now.State {
			now.Since = cmp.Or(has.Since, now.Since)
		}
		err = r.setHealth(ctx, claim, key, now.Value)
	}
	switch {
	case errors.Is(err, errNoClaim):
		now.claim = "" // not tried again at every check
	case err != nil:
		return has, err
	}
	return now, nil
}

func refresh() time.Duration {
	return time.Duration(float64(healthRefresh) * (1 + healthJitter*(rand.Float64()-0.5))) //nolint:gosec // no secret
}

// isOutage returns whether an error is one of the API as a whole, and not of one
// request: 500 (InternalError) may be a webhook's.
func isOutage(err error) bool { return isUnavailable(err) && !apierrors.IsInternalError(err) }

// healthOf reads one annotation of a claim. It is due at once if its value cannot be read or be true,
// or was written by a clock that is ahead, and unknown with an error.
func (r *reporter) healthOf(ctx context.Context, claim *corev1.ObjectReference, key string) (annotation, error) {
	var now corev1.PersistentVolumeClaim
	what := request{Verb: "get", GroupResource: claimKind.GroupResource, Namespace: claim.Namespace, Name: claim.Name}
	err := r.do(ctx, what, r.client.core.Get(), &now)
	switch {
	case apierrors.IsNotFound(err), err == nil && (now.UID != claim.UID || now.DeletionTimestamp != nil):
		return annotation{}, errNoClaim
	case err != nil:
		return annotation{}, err
	}
	has, text := annotation{claim: claim.UID}, now.Annotations[key]
	if len(text) > maxHealthBytes || json.Unmarshal([]byte(text), &has.Value) != nil {
		return annotation{claim: claim.UID}, nil
	}
	checked, err := time.Parse(time.RFC3339, has.LastChecked)
	since, wrong := time.Parse(time.RFC3339, has.Since)
	if wrong != nil || since.After(time.Now()) {
		has.Since = "" // also who may write the claim may have written that
		return has, nil
	}
	has.Since = since.UTC().Format(time.RFC3339) // else with any number of digits
	if err == nil && checked.Before(time.Now()) {
		has.due = checked.Add(refresh())
	}
	return has, nil
}

// setHealth sets one annotation of a claim and leaves the others alone.
func (r *reporter) setHealth(ctx context.Context, claim *corev1.ObjectReference, key string, health volumehealth.Value) error {
	value, err := json.Marshal(health)
	patch, errPatch := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         claim.UID, // so that another claim of that name is refused
		"annotations": map[string]string{key: string(value)},
	}})
	if err := errors.Join(err, errPatch); err != nil {
		return fmt.Errorf("encode the health of a volume: %w", err)
	}
	what := request{Verb: "patch", GroupResource: claimKind.GroupResource, Namespace: claim.Namespace, Name: claim.Name}
	err = r.do(ctx, what, r.client.core.Patch(types.MergePatchType).Body(patch), &corev1.PersistentVolumeClaim{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return errNoClaim
	}
	return err
}
