package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Order returns how the settings have a driver told to stage a volume anew. Its error says
// why it is not.
func (c *Cluster) Order(driver string) (healer.RestageOrder, error) {
	s := c.currentSettings()
	if order, known := s.restage[driver]; known && s.err == nil {
		return order, nil
	}
	if len(s.selfRepair[driver]) > 0 {
		return "", fmt.Errorf("driver %s repairs its volumes itself, and one that it did not repair is staged anew only where it is switched on: see docs/restage.md, then %s in %s",
			healer.QuoteName(driver), clustersettings.Restage, c.configMapName())
	}
	return "", fmt.Errorf("driver %s is not switched on: see docs/restage.md for what to test first, then %s in %s",
		healer.QuoteName(driver), clustersettings.Restage, c.configMapName())
}

// Request returns what kubelet would call the driver with to stage a volume, by what the
// API says now.
func (c *Cluster) Request(ctx context.Context, of healer.Case, staged healer.MountPoint) (healer.StageRequest, error) {
	w, pv, r, err := c.volumeOf(ctx, of, staged)
	if err != nil {
		return r, err
	}
	// First: what fails then may be mended in one of them.
	r.Secrets, r.Inputs, err = c.stageSecret(ctx, pv)
	if isUnavailable(err) {
		r.Inputs = healer.StageInputs{}
	}
	c.inputs.Add(volumeKey{of.Driver, of.Volume.ID}, r.Inputs, inputsTTL)
	none := healer.StageRequest{Inputs: r.Inputs}
	if err != nil {
		return none, err
	}
	for _, known := range w.pods {
		pod, err := whole(ctx, c.reader, podKind, known.Namespace, known.Name)
		if err != nil {
			return none, err
		}
		if s := pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
			r.FSGroup = true
			break
		}
	}
	if r.PublishContext, err = c.publishContext(ctx, pv); err != nil {
		return none, err
	}
	return r, nil
}

// Usage returns how the volume's PersistentVolume says that it is used.
func (c *Cluster) Usage(ctx context.Context, of healer.Case, at healer.MountPoint) (healer.StageRequest, error) {
	_, _, r, err := c.volumeOf(ctx, of, at)
	return r, err
}

// volumeOf asks the API about a volume, and reads the one PersistentVolume that pods of
// this node have of it, and how that says that the volume is used.
func (c *Cluster) volumeOf(ctx context.Context, of healer.Case, at healer.MountPoint) (w *view, pv *corev1.PersistentVolume, r healer.StageRequest, err error) {
	w, err = c.ask(ctx, nameAt(of, at), "", true)
	if err = cmp.Or(err, w.unavailable); err != nil {
		return w, nil, r, err
	}
	if pv, err = c.persistentVolume(ctx, of, w); err != nil {
		return w, nil, r, err
	}
	r = healer.StageRequest{
		VolumeAccessMode: string(corev1.ReadWriteOnce), FSType: pv.Spec.CSI.FSType, MountFlags: pv.Spec.MountOptions,
		Block: pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock, VolumeContext: pv.Spec.CSI.VolumeAttributes,
	}
	if len(pv.Spec.AccessModes) > 0 {
		r.VolumeAccessMode = string(pv.Spec.AccessModes[0])
	}
	return w, pv, r, nil
}

// publishContext returns what ControllerPublishVolume gave, for a driver that attaches
// volumes. It fails for drivers to which kubelet tells more than is known here. Tokens of a pod's service
// account (tokenRequests) are told to NodePublishVolume alone.
func (c *Cluster) publishContext(ctx context.Context, pv *corev1.PersistentVolume) (healer.Secrets, error) {
	driver, err := get(ctx, c.reader, driverKind, "", pv.Spec.CSI.Driver)
	if err != nil {
		return nil, fmt.Errorf("cannot ask what driver %s needs: %w", pv.Spec.CSI.Driver, err)
	}
	if driver != nil {
		switch spec := driver.Spec; {
		case spec.SELinuxMount != nil && *spec.SELinuxMount:
			return nil, errors.New("the driver mounts with the SELinux label of a pod (seLinuxMount), which only kubelet knows")
		case spec.AttachRequired != nil && !*spec.AttachRequired:
			return nil, nil
		}
	}
	// As the attach/detach controller names it (pkg/volume/csi/csi_attacher.go of Kubernetes).
	name := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(pv.Spec.CSI.VolumeHandle+pv.Spec.CSI.Driver+c.cfg.NodeName)))
	a, err := whole(ctx, c.reader, attachmentKind, "", name)
	switch {
	case err != nil:
		return nil, err
	case a.DeletionTimestamp != nil || !a.Status.Attached:
		return nil, fmt.Errorf("VolumeAttachment %s is being deleted, or not attached", name)
	}
	return a.Status.AttachmentMetadata, nil
}
