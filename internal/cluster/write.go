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

// attachment is what proves that a volume's device is this node's: the VolumeAttachment, or the name of a
// driver that attaches no volumes.
type attachment struct {
	here       *storagev1.VolumeAttachment
	unattached string
}

// mayWrite returns why this node must not write to a volume's device; nil: it may. The view is of
// after attached, and the attachment is read once more.
func (w *view) mayWrite(ctx context.Context, of attachment) error {
	if w.unavailable != nil {
		return fmt.Errorf("cannot ask whether this node may still write: %w", w.unavailable)
	}
	if err := w.draining(); err != nil {
		return err
	}
	if of.here != nil {
		now, err := get(ctx, w.c.reader, attachmentKind, "", of.here.Name)
		if err != nil {
			return fmt.Errorf("cannot ask whether this node still has the volume: %w", err)
		}
		return usable(of.here, now)
	}
	if slices.Contains(w.settings.writeWithoutAttachment, of.unattached) {
		return nil
	}
	return fmt.Errorf("driver %s attaches no volumes (attachRequired: false), so nothing proves that no other node has this one; %s in %s allows it",
		of.unattached, clustersettings.WriteWithoutAttachment, w.c.configMapName())
}

// usable returns why a VolumeAttachment of this node, as it is now, does not say that the node has the volume.
func usable(was, now *storagev1.VolumeAttachment) error {
	switch {
	case now == nil || now.UID != was.UID:
		return fmt.Errorf("VolumeAttachment %s of this node was deleted", was.Name)
	case now.DeletionTimestamp != nil:
		return fmt.Errorf("VolumeAttachment %s of this node is being deleted", was.Name)
	case !now.Status.Attached:
		return fmt.Errorf("VolumeAttachment %s of this node is not attached", was.Name)
	}
	return nil
}

// attached returns an error unless the volume is attached to this node alone, or its driver
// attaches no volumes. All of it is asked of the API now: a watch may be the last to
// hear that the volume was detached, or attached to another node. The lists may take longer than
// all else that is asked before a step, which has to be asked again after them.
func (w *view) attached(ctx context.Context) (of attachment, err error) {
	name := w.volume
	sameHandle, err := matches(ctx, w.c, volumeKind, name.matches)
	if err != nil {
		return of, fmt.Errorf("cannot ask which volumes have this handle: %w", err)
	}
	own := slices.DeleteFunc(slices.Clone(sameHandle), func(pv *corev1.PersistentVolume) bool {
		return name.directory != "" && pv.Name != name.directory
	})
	if len(own) != 1 { // without one nothing is proven; of several it is not known which
		return of, fmt.Errorf("%d PersistentVolumes of driver %s have this handle, so no attachment proves that this node may write", len(own), name.driver)
	}
	driver := own[0].Spec.CSI.Driver
	object, err := get(ctx, w.c.reader, driverKind, "", driver)
	switch {
	case err != nil:
		return of, fmt.Errorf("cannot ask whether driver %s attaches volumes: %w", driver, err)
	case object == nil, object.Spec.AttachRequired == nil, *object.Spec.AttachRequired:
		// Kubernetes takes a driver without that object for one that attaches.
		of.here, err = w.attachedHere(ctx, own[0], sameHandle)
		return of, err
	}
	return attachment{unattached: driver}, nil
}

// attachedHere returns the volume's attachment to this node, or an error: also when another node
// has an attachment of a volume that only one node may write to, by any PersistentVolume or inline
// volume with the same driver and handle.
func (w *view) attachedHere(ctx context.Context, pv *corev1.PersistentVolume, sameHandle []*corev1.PersistentVolume) (here *storagev1.VolumeAttachment, err error) {
	csi, node := pv.Spec.CSI, w.c.cfg.NodeName
	attachments, err := matches(ctx, w.c, attachmentKind, func(a *storagev1.VolumeAttachment) bool {
		volume := a.Spec.Source.PersistentVolumeName
		if volume != nil && slices.ContainsFunc(sameHandle, func(of *corev1.PersistentVolume) bool {
			return of.Name == *volume && of.Spec.CSI.Driver == csi.Driver
		}) {
			return true
		}
		inline := a.Spec.Source.InlineVolumeSpec
		return inline != nil && inline.CSI != nil && inline.CSI.Driver == csi.Driver && inline.CSI.VolumeHandle == csi.VolumeHandle
	})
	if err != nil {
		return nil, fmt.Errorf("cannot ask which node has the volume: %w", err)
	}
	var elsewhere error
	for _, a := range attachments {
		volume := a.Spec.Source.PersistentVolumeName
		switch {
		case a.Spec.NodeName != node && !slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany):
			elsewhere = fmt.Errorf("node %s has an attachment of the volume too (%s), which only one node may write to", a.Spec.NodeName, a.Name)
		case a.Spec.NodeName != node, a.Spec.Attacher != csi.Driver, volume == nil, *volume != pv.Name:
		default:
			if here = a; usable(a, a) != nil {
				return nil, usable(a, a)
			}
		}
	}
	if here == nil {
		return nil, errors.New("no VolumeAttachment says that the volume is attached to this node")
	}
	return here, elsewhere
}
