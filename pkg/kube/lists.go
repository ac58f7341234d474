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
	// maxLists bounds the attempts to read a list in one snapshot.
	maxLists = 3
)

// listOf is a pointer to a list as the API sends it.
type listOf[L any] interface {
	*L
	runtime.Object
	metav1.ListInterface
}

// errOtherSnapshot says that the pages of a list are of different snapshots.
var errOtherSnapshot = errors.New("the pages of the list are of different resource versions")

// matches reads a list of the whole cluster in pages and returns what matches.
// All pages are of one snapshot, so that an object that moves between pages is
// not missed.
func matches[L any, P listOf[L], M any](ctx context.Context, c *Client, what request, match func(P) []M) (found []M, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	for range maxLists {
		found, err = matchesOnce(ctx, c, what, match)
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, errOtherSnapshot) {
			return found, err
		}
	}
	return nil, fmt.Errorf("%s: no snapshot lasted to the end of %d lists: %w", what, maxLists, err)
}

func matchesOnce[L any, P listOf[L], M any](ctx context.Context, c *Client, what request, match func(P) []M) (found []M, err error) {
	snapshot := ""
	for page := (metav1.ListOptions{Limit: listPage}); ; {
		list := P(new(L))
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

// VolumesWithHandle returns all PersistentVolumes of the cluster with a driver
// and a handle, as the API has them now. The API cannot select by handle.
func (c *Cluster) VolumesWithHandle(ctx context.Context, name VolumeName) ([]*corev1.PersistentVolume, error) {
	got, err := c.reader.share(ctx, "list volumes "+name.Driver+" "+name.Handle, func(ctx context.Context) (any, error) {
		return matches(ctx, c.client, request{Resource: volumeKind.resource},
			func(page *corev1.PersistentVolumeList) (found []*corev1.PersistentVolume) {
				for i := range page.Items {
					if pv := &page.Items[i]; name.matches(pv) {
						kept := pv.DeepCopy() // so that the page is freed
						volumeKind.strip(kept)
						found = append(found, kept)
					}
				}
				return found
			})
	})
	found, _ := got.([]*corev1.PersistentVolume)
	return found, err
}

// Attachment is the part of a VolumeAttachment that callers need.
type Attachment struct {
	Name, Node, Attacher string
	// Volume is the PersistentVolume's name; empty for a pod's inline volume that
	// was migrated to CSI.
	Volume             string
	Attached, Deleting bool
}

// Attachments returns all attachments in the cluster of volumes that share a
// driver and a handle, and of pods' inline volumes with the same ones, as the API
// has them now. The API cannot select them, and a watch may lag.
func (c *Cluster) Attachments(ctx context.Context, volumes []*corev1.PersistentVolume) ([]Attachment, error) {
	csi := volumes[0].Spec.CSI
	var names []string
	for _, pv := range volumes {
		names = append(names, pv.Name)
	}
	slices.Sort(names)
	got, err := c.reader.share(ctx, fmt.Sprint("list attachments ", csi.Driver, csi.VolumeHandle, names), func(ctx context.Context) (any, error) {
		return matches(ctx, c.client, request{Group: storagev1.GroupName, Resource: "volumeattachments"},
			func(page *storagev1.VolumeAttachmentList) (found []Attachment) {
				for i := range page.Items {
					if a, is := attachmentOf(&page.Items[i], names, csi); is {
						found = append(found, a)
					}
				}
				return found
			})
	})
	found, _ := got.([]Attachment)
	return found, err
}

func attachmentOf(a *storagev1.VolumeAttachment, volumes []string, csi *corev1.CSIPersistentVolumeSource) (Attachment, bool) {
	found := Attachment{
		Name: a.Name, Node: a.Spec.NodeName, Attacher: a.Spec.Attacher,
		Attached: a.Status.Attached, Deleting: a.DeletionTimestamp != nil,
	}
	switch volume, inline := a.Spec.Source.PersistentVolumeName, a.Spec.Source.InlineVolumeSpec; {
	case volume != nil && slices.Contains(volumes, *volume):
		found.Volume = *volume
		return found, true
	case inline != nil && inline.CSI != nil && inline.CSI.Driver == csi.Driver && inline.CSI.VolumeHandle == csi.VolumeHandle:
		return found, true
	}
	return Attachment{}, false
}
