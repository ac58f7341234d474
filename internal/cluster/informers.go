package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/intree"
)

// The indexes of the pods' informer.
const (
	byUID       = "uid"
	byClaim     = "claim"
	byDaemonSet = "daemonset" // the pods of DaemonSets, under one key
)

// informer follows the few objects of one kind that belong to this node.
// Inspections go by it; before a step the API itself is asked.
type informer struct {
	cache.SharedIndexInformer
	what request

	mu sync.Mutex
	// err is the last error of list or watch, loggedAt the resource version at
	// which an error was last logged.
	err      error
	loggedAt string
}

// noWatchList has an informer list instead of streaming the list: a reflector
// that streams sleeps for up to a minute after a refused connection, even when
// its context ends (client-go, Reflector.watchList).
type noWatchList struct{}

// IsWatchListSemanticsUnSupported implements what client-go asks of a client.
func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

func newInformer[T apiObject](c *client, k kind[T], namespace string, selector fields.Selector, indexes cache.Indexers, changes cache.ResourceEventHandler) (*informer, error) {
	what := request{Verb: "list", GroupResource: k.GroupResource, Namespace: namespace}
	strip := func(o any) {
		if whole, ok := o.(T); ok {
			k.strip(whole)
		}
	}
	lists := cache.NewFilteredListWatchFromClient(c.core, k.Resource, namespace, func(o *metav1.ListOptions) { o.FieldSelector = selector.String() })
	// The reflector's own pages would be kept whole until the last one has come, and its
	// resource version 0 has the API answer with everything at once. 300 pods of 1 MB,
	// which anybody may create, are then more memory than this process has.
	lists.ListWithContextFunc = func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
		all := &metainternalversion.List{}
		version, err := c.pages(ctx, what, selector, podsPerPage, func(o runtime.Object) {
			strip(o)
			all.Items = append(all.Items, o)
		})
		all.ResourceVersion = version
		return all, err
	}
	i := &informer{
		SharedIndexInformer: cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lists, noWatchList{}), k.empty(), 0, indexes),
		what:                what,
	}
	_, err := i.AddEventHandler(changes)
	err = errors.Join(
		err,
		i.SetTransform(func(o any) (any, error) { // of what the watch brings, one object at a time
			strip(o)
			return o, nil
		}),
		i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { i.fail(explain(i.what, err)) }),
	)
	return i, err
}

// fail records an error and logs it if it is new: an answer of the API when its
// text changes, a broken connection once until a watch has worked again.
func (i *informer) fail(err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // how watches end
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	at := "at " + i.LastSyncResourceVersion()
	if i.loggedAt != at || isAnswer(err) && err.Error() != i.err.Error() {
		klog.ErrorS(err, "Cannot follow what the cluster wants", "resource", i.what.Resource)
	}
	i.err, i.loggedAt = err, at
}

// listed returns why the informer has no list yet; nil: it has its first one.
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

func (c *Cluster) podsBy(index, key string) (pods []*corev1.Pod) {
	objects, _ := c.pods.GetIndexer().ByIndex(index, key) //nolint:errcheck // podIndexes has it
	for _, o := range objects {
		pods = append(pods, o.(*corev1.Pod))
	}
	return pods
}

var podIndexes = cache.Indexers{
	byUID:   func(o any) ([]string, error) { return []string{string(o.(*corev1.Pod).UID)}, nil },
	byClaim: func(o any) ([]string, error) { return claimsOf(o.(*corev1.Pod)), nil },
	byDaemonSet: func(o any) ([]string, error) {
		if ownedByDaemonSet(o.(*corev1.Pod)) {
			return []string{""}, nil
		}
		return nil, nil
	},
}

func ownedByDaemonSet(p *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(p)
	return owner != nil && owner.Kind == daemonSet
}

// claimsOf returns the claims of a pod's volumes as <namespace>/<name>.
func claimsOf(p *corev1.Pod) (claims []string) {
	for i := range p.Spec.Volumes {
		if claim := intree.ClaimOf(p, &p.Spec.Volumes[i]); claim != "" {
			claims = append(claims, p.Namespace+"/"+claim)
		}
	}
	return claims
}
