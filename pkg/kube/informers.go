package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// The indexes of the pods' informer.
const (
	byUID    = "uid"
	byClaim  = "claim"
	byDaemon = "daemon" // pods of DaemonSets, all of them
	byGoing  = "going"  // pods that are terminating, but for those of DaemonSets
)

// informer follows a few objects that belong to this node. It is the memory for
// looks; a step asks the API itself.
type informer struct {
	cache.SharedIndexInformer
	what request

	mu sync.Mutex
	// err is the last error of list or watch, loggedAt how far the informer had
	// come when one was last logged.
	err      error
	loggedAt string
}

// neverStreams has an informer ask for lists: one that streams them sleeps for up
// to a minute after a refused connection, also when it is told to stop (client-go,
// Reflector.watchList).
type neverStreams struct{}

// IsWatchListSemanticsUnSupported implements what client-go asks of a client.
func (neverStreams) IsWatchListSemanticsUnSupported() bool { return true }

func newInformer[T apiObject](c *Client, k kind[T], namespace string, selector fields.Selector, indexes cache.Indexers) (*informer, error) {
	lists := cache.NewFilteredListWatchFromClient(c.groups[k.group], k.resource, namespace, func(o *metav1.ListOptions) { o.FieldSelector = selector.String() })
	i := &informer{
		SharedIndexInformer: cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lists, neverStreams{}), k.empty(), 0, indexes),
		what:                request{Verb: "list", Group: k.group, Resource: k.resource, Namespace: namespace},
	}
	err := errors.Join(
		i.SetTransform(func(o any) (any, error) {
			if whole, ok := o.(T); ok {
				k.keep(whole)
			}
			return o, nil
		}),
		i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { i.fail(c.explain(i.what, err)) }),
	)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.resource, err)
	}
	return i, nil
}

// fail takes note of an error, and logs one that is new: what the API answers when
// its text changes, a connection that breaks once between two that worked.
func (i *informer) fail(err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // how watches end
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	reached := "at " + i.LastSyncResourceVersion()
	if i.loggedAt != reached || hasAnswered(err) && err.Error() != i.err.Error() {
		klog.ErrorS(err, "Cannot follow what the cluster wants", "resource", i.what.Resource)
	}
	i.err, i.loggedAt = err, reached
}

// listed says why the informer knows nothing yet; nil: it has its first list.
func (i *informer) listed() error {
	if i.HasSynced() {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil {
		return i.err
	}
	return fmt.Errorf("the list of %s has not come yet", i.what.Resource)
}

func one[T any](i *informer, key string) (T, bool) {
	o, found, err := i.GetIndexer().GetByKey(key)
	t, ok := o.(T)
	return t, found && ok && err == nil
}

func indexed[T any](i *informer, index, key string) []T {
	objects, err := i.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil
	}
	list := make([]T, 0, len(objects))
	for _, o := range objects {
		if t, ok := o.(T); ok {
			list = append(list, t)
		}
	}
	return list
}

func podIndexes() cache.Indexers {
	index := func(keys func(*corev1.Pod) []string) cache.IndexFunc {
		return func(o any) ([]string, error) { return keys(o.(*corev1.Pod)), nil }
	}
	all := func(is func(*corev1.Pod) bool) cache.IndexFunc {
		return index(func(p *corev1.Pod) []string {
			if is(p) {
				return []string{""}
			}
			return nil
		})
	}
	return cache.Indexers{
		byUID:    index(func(p *corev1.Pod) []string { return []string{string(p.UID)} }),
		byClaim:  index(claimsOf),
		byDaemon: all(ownedByDaemonSet),
		byGoing:  all(func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil && !ownedByDaemonSet(p) }),
	}
}

func ownedByDaemonSet(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet"
}

// claimsOf gives the claims of a pod's volumes as <namespace>/<name>.
func claimsOf(p *corev1.Pod) (claims []string) {
	for i := range p.Spec.Volumes {
		if claim := claimOf(p, &p.Spec.Volumes[i]); claim != "" {
			claims = append(claims, p.Namespace+"/"+claim)
		}
	}
	return claims
}

// claimOf gives the name of the claim behind a pod's volume; empty for a volume
// of another kind. A generic ephemeral volume's claim is named after pod and
// volume.
func claimOf(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
}
