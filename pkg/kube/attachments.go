package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// attachmentsTime bounds the list of all attachments in the cluster, which
	// comes in pages.
	attachmentsTime = 10 * time.Second
	attachmentsPage = 500
)

// mayWrite says why this node must not write to a volume's device; nil: it may.
// It believes no cache that could be the last to hear that the volume is taken
// away, or given to somebody else: the API is asked now, and without an answer
// the device is not written to.
func (c *Cluster) mayWrite(ctx context.Context, s settings, v volumeName) error {
	if err := c.answers(); err != nil {
		return err
	}
	node := &corev1.Node{}
	if err := c.client.get(ctx, request{Resource: "nodes", Name: c.cfg.Node}, node); err != nil {
		return fmt.Errorf("cannot ask whether this node may still write: %w", err)
	}
	outOfService := func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }
	if slices.ContainsFunc(node.Spec.Taints, outOfService) {
		return fmt.Errorf("the node has the taint %s: other nodes may have its volumes", corev1.TaintNodeOutOfService)
	}
	if err := c.emptied(node); err != nil {
		return err
	}
	pvs := c.volumesOf(v)
	if len(pvs) != 1 { // with none, nothing speaks for us; with several, which one does
		return fmt.Errorf("%d PersistentVolumes of driver %s have this handle, so no attachment proves that this node may write", len(pvs), v.driver)
	}
	if free, err := c.attachesNothing(ctx, s, pvs[0].driver); err != nil || free {
		return err
	}
	attachments, err := c.attachments.get(ctx, c.listAttachments)
	if err != nil {
		return fmt.Errorf("cannot ask which node has the volume: %w", err)
	}
	if err := c.attached(attachments, pvs[0]); err != nil {
		return err
	}
	return c.elsewhere(attachments, pvs[0])
}

// answers fails when the API did not answer the last question. A volume may have
// many places, and each would wait for an API that hangs.
func (c *Cluster) answers() error {
	if err := c.heart.failing(); err != nil {
		return fmt.Errorf("cannot ask whether this node may still write: %w", err)
	}
	return nil
}

// attachesNothing is true for a driver without attachments whose devices may be
// written to by the settings, and an error for one without that leave.
func (c *Cluster) attachesNothing(ctx context.Context, s settings, driver string) (bool, error) {
	object := &storagev1.CSIDriver{}
	err := c.client.get(ctx, request{Group: storagev1.GroupName, Resource: "csidrivers", Name: driver}, object)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil // Kubernetes takes such a driver for one that attaches
	case err != nil:
		return false, fmt.Errorf("cannot ask whether driver %s attaches volumes: %w", driver, err)
	case object.Spec.AttachRequired == nil || *object.Spec.AttachRequired:
		return false, nil
	case slices.Contains(s.writeWithoutAttachment, driver):
		return true, nil
	}
	return false, fmt.Errorf("driver %s attaches no volumes (attachRequired: false), so nothing proves that no other node has this one; %s in %s allows it",
		driver, keyWriteWithoutAttachment, c.settingsName())
}

// attachment is what is asked of a VolumeAttachment. A large cluster has thousands.
type attachment struct {
	name, node, attacher string
	// volume is the PersistentVolume's name; or, of a pod's inline volume that was
	// migrated to CSI, there is a driver and a handle.
	volume, driver, handle string
	attached, deleting     bool
}

func attachmentFrom(a *storagev1.VolumeAttachment) attachment {
	kept := attachment{
		name: a.Name, node: a.Spec.NodeName, attacher: a.Spec.Attacher,
		attached: a.Status.Attached, deleting: a.DeletionTimestamp != nil,
	}
	if volume := a.Spec.Source.PersistentVolumeName; volume != nil {
		kept.volume = *volume
	}
	if inline := a.Spec.Source.InlineVolumeSpec; inline != nil && inline.CSI != nil {
		kept.driver, kept.handle = inline.CSI.Driver, inline.CSI.VolumeHandle
	}
	return kept
}

// listAttachments reads the attachments of the whole cluster as they are now. No
// watch is kept for them: that would cost every node all the time, and its word
// would not be good enough. The API cannot select them by node or volume.
func (c *Cluster) listAttachments(ctx context.Context) ([]attachment, error) {
	ctx, cancel := context.WithTimeout(ctx, attachmentsTime)
	defer cancel()
	var all []attachment
	for page := (metav1.ListOptions{Limit: attachmentsPage}); ; {
		list := &storagev1.VolumeAttachmentList{}
		if err := c.client.list(ctx, request{Group: storagev1.GroupName, Resource: "volumeattachments"}, page, list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			all = append(all, attachmentFrom(&list.Items[i]))
		}
		if page.Continue = list.Continue; page.Continue == "" {
			return all, nil
		}
	}
}

// attached fails unless the attachment of a volume to this node stands.
func (c *Cluster) attached(all []attachment, pv *volume) error {
	for _, a := range all {
		if a.node != c.cfg.Node || a.attacher != pv.driver || a.volume != pv.name {
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
// same handle.
func (c *Cluster) elsewhere(all []attachment, pv *volume) error {
	if pv.shared {
		return nil
	}
	// Which volumes share the handle, the informer tells.
	if err := c.volumes.trouble(0); err != nil {
		return fmt.Errorf("cannot tell whether another node has the volume: %w", err)
	}
	same := map[string]bool{}
	for _, one := range c.volumesOf(volumeName{driver: pv.driver, handle: pv.handle}) {
		same[one.name] = true
	}
	for _, a := range all {
		its := same[a.volume] || a.driver == pv.driver && a.handle == pv.handle
		if its && a.node != c.cfg.Node {
			return fmt.Errorf("node %s has an attachment of the volume too (%s), which only one node may write to", a.node, a.name)
		}
	}
	return nil
}
