package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errNoClaim says that a claim does not exist, or that another one has its name.
var errNoClaim = errors.New("the claim is gone")

// CreateEvent creates an event and returns it as the API stored it.
func (c *Client) CreateEvent(ctx context.Context, e *corev1.Event) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r := request{Verb: "create", Resource: "events", Namespace: e.Namespace}
	stored := &corev1.Event{}
	return stored, explain(r, c.on(r, c.groups[r.Group].Post()).Body(e).Do(ctx).Into(stored))
}

// PatchEvent changes an event and returns it as the API stored it.
func (c *Client) PatchEvent(ctx context.Context, e *corev1.Event, patch []byte) (*corev1.Event, error) {
	stored := &corev1.Event{}
	return stored, c.patch(ctx, request{Resource: "events", Namespace: e.Namespace, Name: e.Name}, types.StrategicMergePatchType, patch, stored)
}

// ClaimAnnotation returns the value of one annotation of a claim.
func (c *Client) ClaimAnnotation(ctx context.Context, claim corev1.ObjectReference, key string) (string, error) {
	var now corev1.PersistentVolumeClaim
	err := c.get(ctx, request{Resource: claimKind.resource, Namespace: claim.Namespace, Name: claim.Name}, &now)
	switch {
	case apierrors.IsNotFound(err):
		return "", errNoClaim
	case err != nil:
		return "", err
	case now.UID != claim.UID || now.DeletionTimestamp != nil:
		return "", errNoClaim
	}
	return now.Annotations[key], nil
}

// AnnotateClaim sets one annotation of a claim and leaves the others alone.
func (c *Client) AnnotateClaim(ctx context.Context, claim corev1.ObjectReference, key, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         claim.UID, // so that another claim of that name is refused
		"annotations": map[string]string{key: value},
	}})
	if err != nil {
		return fmt.Errorf("encode the annotation of a claim: %w", err)
	}
	r := request{Resource: claimKind.resource, Namespace: claim.Namespace, Name: claim.Name}
	err = c.patch(ctx, r, types.MergePatchType, patch, &corev1.PersistentVolumeClaim{})
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
