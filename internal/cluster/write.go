package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
)

// mayWrite returns why this node must not write to a volume's device; nil: it may.
// All of it is asked of the API now: a watch may be the last to hear that the volume
// was detached, or attached to another node.
func (w *view) mayWrite(ctx context.Context) error {
	name, node := w.volume, w.c.cfg.NodeName
	if w.unavailable != nil {
		return fmt.Errorf("cannot ask whether this node may still write: %w", w.unavailable)
	}
	if err := w.draining(); err != nil {
		return err
	}
	sameHandle, err := w.c.volumesWithHandle(ctx, name)
	if err != nil {
		return fmt.Errorf("cannot ask which volumes have this handle: %w", err)
	}
	var own, sameDriver []*corev1.PersistentVolume
	for _, pv := range sameHandle {
		if name.directory == "" || pv.Name == name.directory {
			own = append(own, pv)
		}
	}
	if len(own) != 1 { // without one nothing is proven; of several it is not known which
		return fmt.Errorf("%d PersistentVolumes of driver %s have this handle, so no attachment proves that this node may write", len(own), name.driver)
	}
	pv := own[0]
	if allowed, err := w.writesWithoutAttachment(ctx, pv.Spec.CSI.Driver); err != nil || allowed {
		return err
	}
	for _, other := range sameHandle {
		if other.Spec.CSI.Driver == pv.Spec.CSI.Driver {
			sameDriver = append(sameDriver, other)
		}
	}
	attachments, err := w.c.attachments(ctx, sameDriver)
	if err != nil {
		return fmt.Errorf("cannot ask which node has the volume: %w", err)
	}
	if err := attachedHere(attachments, pv, node); err != nil {
		return err
	}
	return attachedToOtherNode(attachments, pv, node)
}

// writesWithoutAttachment returns true for a driver without attachments to whose
// devices the settings allow writes, and an error for one whose they do not.
func (w *view) writesWithoutAttachment(ctx context.Context, driver string) (bool, error) {
	object, err := get(ctx, w.c.reader, driverKind, "", driver)
	switch {
	case err != nil:
		return false, fmt.Errorf("cannot ask whether driver %s attaches volumes: %w", driver, err)
	case object == nil, object.Spec.AttachRequired == nil, *object.Spec.AttachRequired:
		return false, nil // Kubernetes takes a driver without that object for one that attaches
	case slices.Contains(w.settings.writeWithoutAttachment, driver):
		return true, nil
	}
	return false, fmt.Errorf("driver %s attaches no volumes (attachRequired: false), so nothing proves that no other node has this one; %s in %s allows it",
		driver, clustersettings.WriteWithoutAttachment, w.c.configMapName())
}

// attachedHere returns an error unless the volume is attached to this node.
func attachedHere(all []*storagev1.VolumeAttachment, pv *corev1.PersistentVolume, node string) error {
	for _, a := range all {
		volume := a.Spec.Source.PersistentVolumeName
		if a.Spec.NodeName != node || a.Spec.Attacher != pv.Spec.CSI.Driver || volume == nil || *volume != pv.Name {
			continue
		}
		switch {
		case a.DeletionTimestamp != nil:
			return fmt.Errorf("VolumeAttachment %s of this node is being deleted", a.Name)
		case !a.Status.Attached:
			return fmt.Errorf("VolumeAttachment %s of this node is not attached", a.Name)
		}
		return nil
	}
	return errors.New("no VolumeAttachment says that the volume is attached to this node")
}

// attachedToOtherNode returns an error when another node has an attachment of a volume
// that only one node may write to, by any PersistentVolume or inline volume with the
// same driver and handle.
func attachedToOtherNode(all []*storagev1.VolumeAttachment, pv *corev1.PersistentVolume, node string) error {
	if slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany) {
		return nil
	}
	for _, a := range all {
		if a.Spec.NodeName != node {
			return fmt.Errorf("node %s has an attachment of the volume too (%s), which only one node may write to", a.Spec.NodeName, a.Name)
		}
	}
	return nil
}
