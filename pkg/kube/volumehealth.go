package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

// healthAnnotation stands on a claim once for every node that uses it, with the
// node's UID at its end. The CSI-Addons controller removes those whose
// lastChecked is old. Format: github.com/csi-addons/kubernetes-csi-addons,
// sidecar/internal/volume-condition and
// internal/controller/csiaddons/volumehealth_cleanup_controller.go.
const healthAnnotation = "csiaddons.openshift.io/volumehealth."

// healthState is the value of that annotation.
type healthState struct {
	State       string `json:"state"`
	LastChecked string `json:"lastChecked"`
	Since       string `json:"since"`
	Node        string `json:"node"`
}

// The states that an annotation knows.
const (
	stateHealthy   = "healthy"
	stateUnhealthy = "unhealthy"
)

func stateOf(ill illnesses) string {
	if len(ill) > 0 {
		return stateUnhealthy
	}
	return stateHealthy
}

// stamp is how times are written.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// errNoClaim says that there is nothing to write to.
var errNoClaim = errors.New("the claim is gone")

// claims reads and writes the metadata of claims, and nothing else of them.
type claims struct{ client *Client }

var claimResource = request{Resource: "persistentvolumeclaims"}

// health reads what stands on a claim; an annotation that nobody can read
// counts as none.
func (c claims) health(ctx context.Context, claim corev1.ObjectReference, node types.UID) (healthState, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	now, err := c.in(claim).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return healthState{}, errNoClaim
	case err != nil:
		return healthState{}, c.explain("get", claim, err)
	case now.UID != claim.UID || now.DeletionTimestamp != nil:
		return healthState{}, errNoClaim
	}
	var state healthState
	if json.Unmarshal([]byte(now.Annotations[healthAnnotation+string(node)]), &state) != nil {
		return healthState{}, nil
	}
	return state, nil
}

// setHealth writes one annotation and leaves the others alone.
func (c claims) setHealth(ctx context.Context, claim corev1.ObjectReference, node types.UID, state healthState) error {
	value, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode the health of a volume: %w", err)
	}
	change, err := json.Marshal(map[string]any{"metadata": map[string]any{
		// Refused for another claim of that name.
		"uid":         claim.UID,
		"annotations": map[string]string{healthAnnotation + string(node): string(value)},
	}})
	if err != nil {
		return fmt.Errorf("encode the health of a volume: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_, err = c.in(claim).Patch(ctx, claim.Name, types.MergePatchType, change, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || isOfAnother(err) {
		return errNoClaim
	}
	return c.explain("patch", claim, err)
}

// isOfAnother is true when the claim has another UID than the change. The API
// calls that invalid (422), as it does much else that is no sign of it.
func isOfAnother(err error) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &answer) || answer.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(answer.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

func (c claims) in(claim corev1.ObjectReference) metadata.ResourceInterface {
	kind := schema.GroupVersionResource{Version: "v1", Resource: claimResource.Resource}
	return c.client.metadata.Resource(kind).Namespace(claim.Namespace)
}

func (c claims) explain(verb string, claim corev1.ObjectReference, err error) error {
	what := claimResource
	what.Verb, what.Namespace = verb, claim.Namespace
	return c.client.explain(what, err)
}
