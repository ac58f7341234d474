package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// mayWrite says why this node must not write to a volume's device; nil: it may.
// It believes no cache that could be the last to hear that the volume is taken
// away: the API is asked now, and without an answer the device is not written to.
func (c *Cluster) mayWrite(ctx context.Context, v volumeName) error {
	// A volume may have many places, and each would wait for an API that hangs.
	if err := c.heart.failing(); err != nil {
		return fmt.Errorf("cannot ask whether this node may still write: %w", err)
	}
	node := &corev1.Node{}
	if err := c.client.get(ctx, request{Resource: "nodes", Name: c.cfg.Node}, node); err != nil {
		return fmt.Errorf("cannot ask whether this node may still write: %w", err)
	}
	outOfService := func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }
	if slices.ContainsFunc(node.Spec.Taints, outOfService) {
		return fmt.Errorf("the node has the taint %s: other nodes may have its volumes", corev1.TaintNodeOutOfService)
	}
	pvs := c.volumesOf(v)
	if len(pvs) != 1 { // with none, nothing speaks for us; with several, which one does
		return fmt.Errorf("%d PersistentVolumes of driver %s have this handle, so no attachment proves that this node may write", len(pvs), v.driver)
	}
	if free, err := c.attachesNothing(ctx, pvs[0].Spec.CSI.Driver); err != nil || free {
		return err
	}
	if err := c.attached(ctx, pvs[0]); err != nil {
		return err
	}
	return c.elsewhere(pvs[0])
}

// attachesNothing is true for a driver without attachments whose devices may be
// written to by the settings, and an error for one without that leave.
func (c *Cluster) attachesNothing(ctx context.Context, driver string) (bool, error) {
	object := &storagev1.CSIDriver{}
	err := c.client.get(ctx, request{Group: storagev1.GroupName, Resource: "csidrivers", Name: driver}, object)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil // Kubernetes takes such a driver for one that attaches
	case err != nil:
		return false, fmt.Errorf("cannot ask whether driver %s attaches volumes: %w", driver, err)
	case object.Spec.AttachRequired == nil || *object.Spec.AttachRequired:
		return false, nil
	case slices.Contains(c.rules().writeWithoutAttachment, driver):
		return true, nil
	}
	return false, fmt.Errorf("driver %s attaches no volumes (attachRequired: false), so nothing proves that no other node has this one; %s in %s allows it",
		driver, keyWriteWithoutAttachment, c.settingsName())
}

// attached fails unless the attachment of a volume to this node stands.
func (c *Cluster) attached(ctx context.Context, pv *corev1.PersistentVolume) error {
	for _, known := range indexed[*storagev1.VolumeAttachment](c.attachments, byVolume, pv.Name) {
		if known.Spec.NodeName != c.cfg.Node || known.Spec.Attacher != pv.Spec.CSI.Driver {
			continue
		}
		now := &storagev1.VolumeAttachment{}
		err := c.client.get(ctx, request{Group: storagev1.GroupName, Resource: "volumeattachments", Name: known.Name}, now)
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return fmt.Errorf("cannot ask whether the volume is attached to this node: %w", err)
		case now.DeletionTimestamp != nil:
			return fmt.Errorf("VolumeAttachment %s of this node is being deleted", now.Name)
		case now.UID != known.UID || !now.Status.Attached:
			return fmt.Errorf("VolumeAttachment %s of this node is not attached", now.Name)
		}
		return nil
	}
	if err := c.attachments.trouble(0); err != nil {
		return fmt.Errorf("cannot tell whether the volume is attached to this node: %w", err)
	}
	return errors.New("no VolumeAttachment says that the volume is attached to this node")
}

// elsewhere fails when another node has an attachment of a volume that only one
// may write to, by whatever PersistentVolume, or pod's inline volume, with the
// same handle. Here the informer's word counts, while its watch stands: a volume
// that moves loses this node's attachment first, and to list those of the whole
// cluster for each write would be too much just when many volumes are sick.
func (c *Cluster) elsewhere(pv *corev1.PersistentVolume) error {
	if slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany) {
		return nil
	}
	for _, f := range []*feed{c.attachments, c.volumes} {
		if err := f.trouble(0); err != nil {
			return fmt.Errorf("cannot tell whether another node has the volume: %w", err)
		}
	}
	driver, handle := pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle
	attachments := indexed[*storagev1.VolumeAttachment](c.attachments, byInline, driver+"/"+handle)
	for _, same := range c.volumesOf(volumeName{driver: driver, handle: handle}) {
		attachments = append(attachments, indexed[*storagev1.VolumeAttachment](c.attachments, byVolume, same.Name)...)
	}
	for _, a := range attachments {
		if a.Spec.NodeName != c.cfg.Node {
			return fmt.Errorf("node %s has an attachment of the volume too (%s), which only one node may write to", a.Spec.NodeName, a.Name)
		}
	}
	return nil
}
