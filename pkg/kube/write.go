package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// mayWrite says why this node must not write to a volume's device; nil: it may. All
// of it is asked now: a memory could be the last to hear that the volume is taken
// away, or given to somebody else.
func (c *Cluster) mayWrite(ctx context.Context, w view, name volumeName) error {
	if w.silence != nil {
		return fmt.Errorf("cannot ask whether this node may still write: %w", w.silence)
	}
	outOfService := func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }
	if slices.ContainsFunc(w.node.Spec.Taints, outOfService) {
		return fmt.Errorf("the node has the taint %s: other nodes may have its volumes", corev1.TaintNodeOutOfService)
	}
	if err := c.emptied(w.node); err != nil {
		return err
	}
	all, err := c.volumesLike(ctx, name)
	if err != nil {
		return fmt.Errorf("cannot ask which volumes have this handle: %w", err)
	}
	var own []*corev1.PersistentVolume
	for _, pv := range all {
		if name.directory == "" || pv.Name == name.directory {
			own = append(own, pv)
		}
	}
	if len(own) != 1 { // with none, nothing speaks for us; with several, which one does
		return fmt.Errorf("%d PersistentVolumes of driver %s have this handle, so no attachment proves that this node may write", len(own), name.driver)
	}
	if free, err := c.attachesNothing(ctx, w.settings, own[0].Spec.CSI.Driver); err != nil || free {
		return err
	}
	var propagatedMounts []*corev1.PersistentVolume
	for _, pv := range all {
		if pv.Spec.CSI.Driver == own[0].Spec.CSI.Driver {
			propagatedMounts = append(propagatedMounts, pv)
		}
	}
	attachments, err := c.attachmentsOf(ctx, propagatedMounts)
	if err != nil {
		return fmt.Errorf("cannot ask which node has the volume: %w", err)
	}
	if err := c.attached(attachments, own[0]); err != nil {
		return err
	}
	return c.propagatedMounts(attachments, own[0])
}

// attachesNothing is true for a driver without attachments whose devices may be
// written to by the settings, and an error for one without that leave.
func (c *Cluster) attachesNothing(ctx context.Context, s settings, driver string) (bool, error) {
	object, err := ask(ctx, c.reader, driverKind, "", driver)
	switch {
	case err != nil:
		return false, fmt.Errorf("cannot ask whether driver %s attaches volumes: %w", driver, err)
	case object == nil, object.Spec.AttachRequired == nil, *object.Spec.AttachRequired:
		return false, nil // Kubernetes takes a driver without that object for one that attaches
	case slices.Contains(s.writeWithoutAttachment, driver):
		return true, nil
	}
	return false, fmt.Errorf("driver %s attaches no volumes (attachRequired: false), so nothing proves that no other node has this one; %s in %s allows it",
		driver, keyWriteWithoutAttachment, c.settingsName())
}

// attached fails unless the attachment of a volume to this node stands.
func (c *Cluster) attached(all []attachment, pv *corev1.PersistentVolume) error {
	for _, a := range all {
		if a.node != c.cfg.Node || a.attacher != pv.Spec.CSI.Driver || a.volume != pv.Name {
			continue
		}
		switch {
		case a.deleting:
			return fmt.Errorf("VolumeAttachment %s of this node is being deleted", a.name)
		case !a.attached:
			return fmt.Errorf("VolumeAttachment %s of this node is not attached", a.name)
		}
		return nil
	}
	return errors.New("no VolumeAttachment says that the volume is attached to this node")
}

// elsewhere fails when another node has an attachment of a volume that only one
// may write to, by whatever PersistentVolume, or pod's inline volume, with the
// same driver and handle.
func (c *Cluster) propagatedMounts(all []attachment, pv *corev1.PersistentVolume) error {
	if slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany) {
		return nil
	}
	for _, a := range all {
		if a.node != c.cfg.Node {
			return fmt.Errorf("node %s has an attachment of the volume too (%s), which only one node may write to", a.node, a.name)
		}
	}
	return nil
}
