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
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// listTime bounds a list of all objects of a kind in the cluster, listPage one
	// page of it in memory.
	listTime = 20 * time.Second
	listPage = 500
	// maxLists is how often a list is begun that does not come to its end in one
	// snapshot.
	maxLists = 3
)

// listObject is what the API sends for a list.
type listObject interface {
	runtime.Object
	metav1.ListInterface
}

// errOtherSnapshot says that the pages of a list are not of one moment.
var errOtherSnapshot = errors.New("the pages of the list are of different resource versions")

// matches pages through a list of the whole cluster as it is now, and keeps of each
// page what matches. All pages are of one snapshot: what moves from one page to
// another must not be missed.
func matches[L listObject, M any](ctx context.Context, c *Client, what request, empty func() L, match func(L) []M) (found []M, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	for range maxLists {
		found, err = matchesOnce(ctx, c, what, empty, match)
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, errOtherSnapshot) {
			return found, err
		}
	}
	return nil, fmt.Errorf("%s: no snapshot lasted to the end of %d lists: %w", what, maxLists, err)
}

func matchesOnce[L listObject, M any](ctx context.Context, c *Client, what request, empty func() L, match func(L) []M) (found []M, err error) {
	snapshot := ""
	for page := (metav1.ListOptions{Limit: listPage}); ; {
		list := empty()
		if err := c.list(ctx, what, page, list); err != nil {
			return nil, err
		}
		if snapshot == "" {
			snapshot = list.GetResourceVersion()
		}
		if list.GetResourceVersion() != snapshot {
			return nil, errOtherSnapshot
		}
		found = append(found, match(list)...)
		if page.Continue = list.GetContinue(); page.Continue == "" {
			return found, nil
		}
	}
}

// volumesLike gives all PersistentVolumes of the cluster with a driver and a handle.
func (c *Cluster) volumesLike(ctx context.Context, name volumeName) ([]*corev1.PersistentVolume, error) {
	got, err := c.reader.share(ctx, "list volumes "+name.driver+" "+name.handle, func(ctx context.Context) (any, error) {
		return matches(ctx, c.client, request{Resource: volumeKind.resource},
			func() *corev1.PersistentVolumeList { return &corev1.PersistentVolumeList{} },
			func(page *corev1.PersistentVolumeList) (found []*corev1.PersistentVolume) {
				for i := range page.Items {
					if pv := &page.Items[i]; name.fits(pv) {
						kept := pv.DeepCopy() // and not all of the page
						volumeKind.keep(kept)
						found = append(found, kept)
					}
				}
				return found
			})
	})
	found, _ := got.([]*corev1.PersistentVolume)
	return found, err
}

// attachment is what is asked of a VolumeAttachment.
type attachment struct {
	name, node, attacher string
	// volume is the PersistentVolume's name; empty for a pod's inline volume that was
	// migrated to CSI.
	volume             string
	attached, deleting bool
}

// attachmentsOf gives all attachments in the cluster of volumes that share a driver
// and a handle, and of pods' inline volumes with these. The API cannot select them,
// and no watch is good enough: it may be the last to hear.
func (c *Cluster) attachmentsOf(ctx context.Context, volumes []*corev1.PersistentVolume) ([]attachment, error) {
	csi := volumes[0].Spec.CSI
	var names []string
	for _, pv := range volumes {
		names = append(names, pv.Name)
	}
	slices.Sort(names)
	got, err := c.reader.share(ctx, fmt.Sprint("list attachments ", csi.Driver, csi.VolumeHandle, names), func(ctx context.Context) (any, error) {
		return matches(ctx, c.client, request{Group: storagev1.GroupName, Resource: "volumeattachments"},
			func() *storagev1.VolumeAttachmentList { return &storagev1.VolumeAttachmentList{} },
			func(page *storagev1.VolumeAttachmentList) (found []attachment) {
				for i := range page.Items {
					a := &page.Items[i]
					kept := attachment{
						name: a.Name, node: a.Spec.NodeName, attacher: a.Spec.Attacher,
						attached: a.Status.Attached, deleting: a.DeletionTimestamp != nil,
					}
					volume, inline := a.Spec.Source.PersistentVolumeName, a.Spec.Source.InlineVolumeSpec
					switch {
					case volume != nil && slices.Contains(names, *volume):
						kept.volume = *volume
						found = append(found, kept)
					case inline != nil && inline.CSI != nil && inline.CSI.Driver == csi.Driver && inline.CSI.VolumeHandle == csi.VolumeHandle:
						found = append(found, kept)
					}
				}
				return found
			})
	})
	found, _ := got.([]attachment)
	return found, err
}
