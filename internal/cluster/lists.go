package cluster

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// listTime bounds a list of all objects of a kind in the cluster.
	listTime = 20 * time.Second
	// podsPerPage and volumesPerPage bound one page of a list as it is sent, where each
	// object may have 1.5 MB: anybody makes such pods, and nobody but administrators and
	// provisioners such volumes, of which there may be 40,000.
	podsPerPage, volumesPerPage = 10, 100
	// maxPageBytes bounds a page that is decoded, in which a pod may take 30 times its
	// size (with 40,000 volumes). After one that is larger the list goes on with one object, and
	// with twice as many in each page after that.
	maxPageBytes = 1 << 20
)

var errOtherSnapshot = errors.New("the pages of the list are of different resource versions")

// pages reads a list page by page and hands on each object, which the caller may keep
// and change, and its resource version at the end. All pages are of one snapshot, so
// that an object that moves between pages is not missed. The caller sets the deadline, and
// explains the error.
func (c *client) pages(ctx context.Context, what request, selector fields.Selector, perPage int64, take func(runtime.Object)) (snapshot string, err error) {
	for page := (metav1.ListOptions{Limit: perPage, FieldSelector: selector.String()}); ; {
		answer := c.on(what, c.core.Get()).VersionedParams(&page, metav1.ParameterCodec).Do(ctx)
		if raw, err := answer.Raw(); err == nil && len(raw) > maxPageBytes && page.Limit > 1 {
			page.Limit = 1
			continue
		}
		list, err := answer.Get()
		if err != nil {
			return "", err
		}
		of, err := meta.ListAccessor(list)
		if err != nil {
			return "", err
		}
		if snapshot == "" {
			snapshot = of.GetResourceVersion()
		}
		if of.GetResourceVersion() != snapshot {
			return "", errOtherSnapshot
		}
		// Each object is copied out of the page, which could not be freed otherwise.
		if err := meta.EachListItemWithAlloc(list, func(o runtime.Object) error { take(o); return nil }); err != nil {
			return "", err
		}
		if page.Continue = of.GetContinue(); page.Continue == "" {
			return snapshot, nil
		}
		page.Limit = min(perPage, 2*page.Limit)
	}
}

// matches reads a list of the whole cluster, as the API has it now, and returns what
// matches: the API can select neither volumes nor attachments by handle.
func matches[T apiObject](ctx context.Context, c *Cluster, k kind[T], match func(T) bool) (found []T, err error) {
	what := request{Verb: "list", GroupResource: k.GroupResource}
	err = c.reader.send(ctx, what, c.reader.lists, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, listTime)
		defer cancel()
		_, err = c.client.pages(ctx, what, fields.Everything(), volumesPerPage, func(o runtime.Object) {
			if t, ok := o.(T); ok {
				if k.strip(t); match(t) {
					found = append(found, t)
				}
			}
		})
		return explain(what, err)
	})
	return found, err
}
