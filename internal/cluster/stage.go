package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What kubelet reads before it has a driver stage a volume. These are read whole, and not
// kept.

// ReadVolume reads a PersistentVolume.
func (c *Cluster) ReadVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return whole(ctx, c, new(corev1.PersistentVolume), request{Resource: volumeKind.resource, Name: name})
}

// ReadPod reads a pod.
func (c *Cluster) ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return whole(ctx, c, new(corev1.Pod), request{Resource: podKind.resource, Namespace: namespace, Name: name})
}

// ReadSecret reads a Secret. Its error names neither the Secret nor the namespace, which
// need not be the claim's, but the Role that is missing.
func (c *Cluster) ReadSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	secret, err := whole(ctx, c, new(corev1.Secret), request{Resource: "secrets", Namespace: namespace, Name: name})
	if why := apierrors.ReasonForError(err); why != metav1.StatusReasonUnknown {
		err = &answeredError{fmt.Sprintf("the Secret cannot be read (%s): it takes a Role for that one Secret, as node-healer-stage-secret in docs/restage.md", why), err}
	}
	return secret, err
}

// ReadAttachment reads a VolumeAttachment.
func (c *Cluster) ReadAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return whole(ctx, c, new(storagev1.VolumeAttachment), request{Group: storagev1.GroupName, Resource: "volumeattachments", Name: name})
}

// AttachmentName returns the name of the VolumeAttachment of a volume to a node, as the
// attach/detach controller gives it (pkg/volume/csi/csi_attacher.go of Kubernetes).
func AttachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

func whole[T apiObject](ctx context.Context, c *Cluster, o T, r request) (T, error) {
	if err := c.reader.backoff(); err != nil {
		return o, err
	}
	return o, c.reader.track(c.client.get(ctx, r, o))
}
