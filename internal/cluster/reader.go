package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"golang.org/x/sync/semaphore"
)

const (
	// cacheTTL is how long an inspection uses what was read before; absentTTL is
	// the same for what did not exist, or could not be read again.
	cacheTTL  = time.Hour
	absentTTL = time.Minute
	// cacheJitter is the part of a TTL by which it is shortened at random, so that
	// reads are spread over time.
	cacheJitter = 0.2
	// maxCached is more than the volumes, claims and classes of one node.
	maxCached = 2048
	// maxParallelReads bounds the reads by name that all queries have under way,
	// maxPodReads those of pods, each of which may take 40 MB.
	maxParallelReads = 16
	maxPodReads      = 4
	// unavailableTime is how long an API that did not answer is not asked again: a
	// volume may have many mount points, and each would wait for it. Nothing is tried
	// again by itself afterwards, so that no schedule of internal/retry fits.
	unavailableTime = 3 * time.Second
)

// reader reads objects by name and caches them.
type reader struct {
	client  *client
	watched map[string]*informer
	// podGets and gets limit the reads by name, lists those of whole lists: what is under
	// way has megabytes of whoever wrote the objects.
	podGets, gets, lists *semaphore.Weighted

	mu sync.Mutex
	// objects has what the API last said, by keyOf.
	objects map[string]cached
	// down is for all requests, listsDown for lists.
	down, listsDown outage
}

// outage is why the API did not answer, and until when it is not asked again.
type outage struct {
	err   error
	until time.Time
}

// cached is what the API last said of one name.
type cached struct {
	object apiObject // nil: it did not exist
	// began is when the request began that said so.
	began time.Time
	// until is when an inspection reads it again.
	until time.Time
}

func newReader(c *client, watched ...*informer) *reader {
	r := &reader{
		client: c, watched: map[string]*informer{}, objects: map[string]cached{},
		podGets: semaphore.NewWeighted(maxPodReads), gets: semaphore.NewWeighted(maxParallelReads), lists: semaphore.NewWeighted(1),
	}
	for _, i := range watched {
		r.watched[i.what.Resource] = i
	}
	return r
}

func keyOf(resource, namespace, name string) string { return resource + " " + namespace + "/" + name }

// get reads an object from the API; nil: it does not exist.
func get[T apiObject](ctx context.Context, r *reader, k kind[T], namespace, name string) (none T, err error) {
	// The client does not send such a name, and its error would look like an API that does
	// not answer: a pod may list a claim of any name, and a caller may name any directory.
	if len(content.IsPathSegmentName(name)) > 0 {
		return none, nil
	}
	began := time.Now()
	switch o, err := whole(ctx, r, k, namespace, name); {
	case err == nil:
		k.strip(o)
		r.keep(keyOf(k.Resource, namespace, name), o, began, cacheTTL)
		return o, nil
	case apierrors.IsNotFound(err):
		r.keep(keyOf(k.Resource, namespace, name), nil, began, absentTTL)
		return none, nil
	default:
		return none, err
	}
}

// whole reads an object from the API, all of it, and keeps nothing.
func whole[T apiObject](ctx context.Context, r *reader, k kind[T], namespace, name string) (T, error) {
	limit := r.gets
	if k.Resource == podKind.Resource {
		limit = r.podGets
	}
	o, what := k.empty(), request{Verb: "get", GroupResource: k.GroupResource, Namespace: namespace, Name: name}
	return o, r.send(ctx, what, limit, func() error { return r.client.do(ctx, what, r.client.core.Get(), o) })
}

// send sends a request within a limit, unless the API did not answer a moment ago. What may be wrong
// with one object alone says nothing of others: 500 (InternalError), as for one that cannot be
// decrypted, and any error for a Secret, for which the API may wait for a key service. A list says something
// of lists alone, which take turns.
func (r *reader) send(ctx context.Context, what request, limit *semaphore.Weighted, send func() error) error {
	if err := limit.Acquire(ctx, 1); err != nil {
		return err
	}
	defer limit.Release(1)
	own := &r.down
	if what.Verb == "list" {
		own = &r.listsDown
	}
	r.mu.Lock()
	known := []outage{r.down, *own}
	r.mu.Unlock()
	for _, o := range known {
		if time.Now().Before(o.until) {
			return o.err
		}
	}
	err := send()
	if ctx.Err() != nil { // the caller's time is over, which says nothing of the API
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !isUnavailable(err) {
		*own = outage{}
		return err
	}
	err = fmt.Errorf("%w: %w", errNoAnswer, err)
	if isOutage(err) && what.GroupResource != secretKind.GroupResource {
		*own = outage{err, time.Now().Add(unavailableTime)}
	}
	return err
}

// errNoAnswer is in each error of send for which isUnavailable holds.
var errNoAnswer = errors.New("the Kubernetes API does not answer")

// isUnavailable returns whether an error says that the API cannot be reached or
// cannot answer now. Any other error is an answer.
func isUnavailable(err error) bool {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return false
	case !isAnswer(err):
		return true
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) // as when it cannot reach etcd
}

// isAnswer returns whether the API itself sent the error.
func isAnswer(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer)
}

// keep caches what the API said of an object, for a time that is shorter at random, so that
// reads are spread. A request that began before the one that was answered first says no more: its
// answer may be older.
func (r *reader) keep(key string, o apiObject, began time.Time, ttl time.Duration) {
	ttl -= time.Duration(float64(ttl) * cacheJitter * rand.Float64()) //nolint:gosec // no secret
	r.mu.Lock()
	defer r.mu.Unlock()
	if began.Before(r.objects[key].began) {
		return
	}
	r.objects[key] = cached{o, began, time.Now().Add(ttl)}
	if len(r.objects) <= maxCached {
		return
	}
	first := key // the one that is due to be read again before the others
	for other, c := range r.objects {
		if c.until.Before(r.objects[first].until) {
			first = other
		}
	}
	delete(r.objects, first)
}

// extend has inspections go by what is known of an object for another minute.
func (r *reader) extend(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, known := r.objects[key]; known {
		c.until = time.Now().Add(absentTTL)
		r.objects[key] = c
	}
}

// forget has the next inspection read an object again, which is named NAMESPACE/NAME.
func (r *reader) forget(resource, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.objects, resource+" "+name) // as keyOf has it
}

// volumesWith returns the names of the volumes that had a handle when they were last read.
func (r *reader) volumesWith(handle string) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.objects {
		if pv, is := c.object.(*corev1.PersistentVolume); is && pv.Spec.CSI != nil && pv.Spec.CSI.VolumeHandle == handle {
			names = append(names, pv.Name)
		}
	}
	slices.Sort(names)
	return names
}

// last returns what the API last said of an object, through its informer or a read, and
// until when an inspection goes by a read; false: nothing is known of it.
func last[T apiObject](r *reader, k kind[T], namespace, name string) (o T, until time.Time, known bool) {
	r.mu.Lock()
	kept, known := r.objects[keyOf(k.Resource, namespace, name)]
	r.mu.Unlock()
	o, _ = kept.object.(T)
	i, watched := r.watched[k.Resource]
	if !watched || i.listed() != nil {
		return o, kept.until, known
	}
	object, _, _ := i.GetIndexer().GetByKey(cache.NewObjectName(namespace, name).String()) //nolint:errcheck // a store has none
	informed, found := object.(T)
	if !found {
		return o, kept.until, true
	}
	if kept.object != nil { // however old: no time makes what was forbidden allowed
		order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), informed.GetResourceVersion())
		if err == nil && order > 0 {
			return o, kept.until, true
		}
	}
	return informed, kept.until, true
}
