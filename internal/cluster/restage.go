package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// parseRestage reads which drivers are told to stage volumes anew, and how.
func parseRestage(text string) (map[string]healer.RestageOrder, error) {
	var orders map[string]string
	if err := yaml.UnmarshalStrict([]byte(text), &orders); err != nil {
		return nil, err
	}
	known := map[string]healer.RestageOrder{}
	for driver, text := range orders {
		order, err := healer.ParseRestageOrder(text)
		if err != nil {
			return nil, fmt.Errorf("driver %.40q: %w", driver, err)
		}
		known[driver] = order
	}
	return known, nil
}

// Order returns how the settings have a driver told to stage a volume anew. Its error says
// why it is not.
func (p *Policy) Order(driver string) (healer.RestageOrder, error) {
	s := p.settings.current()
	if order, known := s.restage[driver]; known && s.err == nil {
		return order, nil
	}
	return "", fmt.Errorf("driver %s is not switched on: see docs/restage.md for what to test first, then %s in %s",
		healer.QuoteName(driver), keyRestage, p.cluster.ConfigMapName())
}

// Request returns what kubelet would call the driver with to stage a volume, by what the
// API says now.
func (p *Policy) Request(ctx context.Context, c healer.Case, staged healer.MountPoint) (healer.StageRequest, error) {
	var none healer.StageRequest
	w, pv, r, err := p.volumeOf(ctx, c, staged)
	if err != nil {
		return none, err
	}
	if r.FSGroup, err = p.anyFSGroup(ctx, w); err != nil {
		return none, err
	}
	if r.PublishContext, err = p.publishContext(ctx, pv); err != nil {
		return none, err
	}
	if ref := pv.Spec.CSI.NodeStageSecretRef; ref != nil {
		secret, err := p.cluster.ReadSecret(ctx, ref.Namespace, ref.Name)
		if err != nil {
			return none, fmt.Errorf("nodeStageSecretRef of PersistentVolume %s: %w", pv.Name, err)
		}
		r.Secrets = healer.Secrets{}
		for key, value := range secret.Data {
			r.Secrets[key] = string(value)
		}
	}
	return r, nil
}

// Usage returns how the volume's PersistentVolume says that it is used.
func (p *Policy) Usage(ctx context.Context, c healer.Case, at healer.MountPoint) (healer.StageRequest, error) {
	_, _, r, err := p.volumeOf(ctx, c, at)
	return r, err
}

// volumeOf asks the API about a volume, and reads the one PersistentVolume that pods of
// this node have of it, and how that says that the volume is used.
func (p *Policy) volumeOf(ctx context.Context, c healer.Case, at healer.MountPoint) (w view, pv *corev1.PersistentVolume, r healer.StageRequest, err error) {
	w, err = p.ask(ctx, nameAt(c, at), "", true)
	if err = cmp.Or(err, w.Unavailable); err != nil {
		return w, nil, r, err
	}
	var names []string
	for _, b := range w.Volumes {
		if b.Matches && !slices.Contains(names, b.PV.Name) {
			names = append(names, b.PV.Name)
		}
	}
	if len(names) != 1 {
		return w, nil, r, fmt.Errorf("%d PersistentVolumes of driver %s have this handle, and what a driver is told comes from the one of a volume (inline and migrated volumes have none)", len(names), healer.QuoteName(c.Driver))
	}
	pv, err = p.cluster.ReadVolume(ctx, names[0])
	switch {
	case err != nil:
		return w, nil, r, err
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != c.Driver || pv.Spec.CSI.VolumeHandle != c.Volume.ID:
		return w, nil, r, fmt.Errorf("PersistentVolume %s is of another volume now", pv.Name)
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

// anyFSGroup reports whether a pod of this node that has the volume has an fsGroup.
func (p *Policy) anyFSGroup(ctx context.Context, w view) (bool, error) {
	for _, known := range w.Pods {
		pod, err := p.cluster.ReadPod(ctx, known.Namespace, known.Name)
		if err != nil {
			return false, err
		}
		if s := pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
			return true, nil
		}
	}
	return false, nil
}

// publishContext returns what ControllerPublishVolume gave, for a driver that attaches
// volumes. It fails for drivers to which kubelet tells more than is known here.
func (p *Policy) publishContext(ctx context.Context, pv *corev1.PersistentVolume) (healer.Secrets, error) {
	driver, err := p.cluster.GetCSIDriver(ctx, pv.Spec.CSI.Driver)
	if err != nil {
		return nil, fmt.Errorf("cannot ask what driver %s needs: %w", pv.Spec.CSI.Driver, err)
	}
	if driver != nil {
		switch spec := driver.Spec; {
		case spec.SELinuxMount != nil && *spec.SELinuxMount:
			return nil, errors.New("the driver mounts with the SELinux label of a pod (seLinuxMount), which only kubelet knows")
		case len(spec.TokenRequests) > 0:
			return nil, errors.New("the driver needs tokens of a pod's service account (tokenRequests), which only kubelet has")
		case spec.AttachRequired != nil && !*spec.AttachRequired:
			return nil, nil
		}
	}
	name := AttachmentName(pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.Driver, p.cluster.NodeName())
	a, err := p.cluster.ReadAttachment(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case a.DeletionTimestamp != nil || !a.Status.Attached:
		return nil, fmt.Errorf("VolumeAttachment %s is being deleted, or not attached", name)
	}
	return a.Status.AttachmentMetadata, nil
}

// wantsRestage is wanted for a step that has a volume staged anew: the API has to say so.
// A running container shows at most that a pod has not ended which may.
func (p *permit) wantsRestage(w view) error {
	switch {
	case p.earlier:
		return errors.New("the volume was not seen healthy since the node booted, so kubelet may be about to stage it")
	case p.step.MountPoint.Layout.Kind != layout.Staging:
		return errors.New("the path is not where kubelet has volumes staged")
	}
	err := w.wanted(p.name, "", p.policy.cluster.NodeName())
	if errors.Is(err, errMayHaveEnded) && p.holder != nil && p.holder.Alive() == nil {
		return nil
	}
	return err
}
