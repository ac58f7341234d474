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
	"k8s.io/utils/lru"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
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
	// maxSameHandle bounds the volumes that are cached for one handle.
	maxSameHandle = 16
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
	client *Client
	// watched has the informers by resource.
	watched map[string]*informer
	calls   singleflight.Group
	// podGets and gets limit the reads by name, lists those of whole lists: what is under
	// way has megabytes of whoever wrote the objects.
	podGets, gets, lists *semaphore.Weighted
	// objects caches a cached by key; handles the names of volumes by handle.
	objects, handles *lru.Cache

	mu sync.Mutex
	// unavailable is why the API did not answer, retryAt when it is asked again.
	unavailable error
	retryAt     time.Time
}

// cached is what the API last said of one name.
type cached struct {
	object apiObject // nil: it did not exist
	until  time.Time
}

func newReader(c *Client, watched ...*informer) *reader {
	r := &reader{
		client: c, watched: map[string]*informer{}, objects: lru.New(maxCached), handles: lru.New(maxCached),
		podGets: semaphore.NewWeighted(maxPodReads), gets: semaphore.NewWeighted(maxParallelReads), lists: semaphore.NewWeighted(1),
	}
	for _, i := range watched {
		r.watched[i.what.Resource] = i
	}
	return r
}

func keyOf(resource, namespace, name string) string { return resource + " " + namespace + "/" + name }

// get reads an object from the API; nil: it does not exist.
func get[T apiObject](ctx context.Context, r *reader, k kind[T], namespace, name string) (T, error) {
	// The client does not send such a name, and its error would look like an API that does
	// not answer: a pod may list a claim of any name, and a caller may name any directory.
	if len(content.IsPathSegmentName(name)) > 0 {
		var none T
		return none, nil
	}
	limit := r.gets
	if k.resource == podKind.resource {
		limit = r.podGets
	}
	got, err := r.share(ctx, keyOf(k.resource, namespace, name), limit, func(ctx context.Context) (any, error) {
		o := k.empty()
		err := r.client.get(ctx, request{Group: k.group, Resource: k.resource, Namespace: namespace, Name: name}, o)
		switch {
		case err == nil:
			k.strip(o)
			r.add(k.resource, namespace, name, o)
			return o, nil
		case apierrors.IsNotFound(err):
			r.add(k.resource, namespace, name, nil)
			return nil, nil
		}
		return nil, err
	})
	o, _ := got.(T)
	return o, err
}

// share runs one request at a time for each key, within a limit, and shares its result. A caller
// never receives the result of a request that was sent before the call, as it
// may be out of date: it waits for that request and shares the next one.
func (r *reader) share(ctx context.Context, key string, limit *semaphore.Weighted, send func(context.Context) (any, error)) (any, error) {
	for waited := false; ; waited = true {
		own := false
		answer := r.calls.DoChan(key, func() (any, error) {
			own = true
			// The first caller's cancellation must not fail the others.
			ctx := context.WithoutCancel(ctx)
			_ = limit.Acquire(ctx, 1) // what is under way has deadlines
			defer limit.Release(1)
			if err := r.backoff(); err != nil {
				return nil, err
			}
			got, err := send(ctx)
			return got, r.track(err)
		})
		select {
		case a := <-answer:
			if own || waited {
				return a.Val, a.Err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// backoff returns why the API is not asked now; nil: it may be asked.
func (r *reader) backoff() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.retryAt) {
		return r.unavailable
	}
	return nil
}

// track records whether the API answered, and adds that to the error.
func (r *reader) track(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.retryAt = (time.Time{}); !isUnavailable(err) {
		return err
	}
	r.unavailable, r.retryAt = fmt.Errorf("the Kubernetes API does not answer: %w", err), time.Now().Add(unavailableTime)
	return r.unavailable
}

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

func (r *reader) add(resource, namespace, name string, o apiObject) {
	ttl := absentTTL
	if o != nil {
		ttl = cacheTTL
	}
	ttl -= time.Duration(float64(ttl) * cacheJitter * rand.Float64()) //nolint:gosec // no secret
	r.objects.Add(keyOf(resource, namespace, name), cached{o, time.Now().Add(ttl)})
	if pv, is := o.(*corev1.PersistentVolume); is && pv.Spec.CSI != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if names := r.volumesWith(pv.Spec.CSI.VolumeHandle); !slices.Contains(names, name) && len(names) < maxSameHandle {
			r.handles.Add(pv.Spec.CSI.VolumeHandle, append(slices.Clone(names), name))
		}
	}
}

// volumesWith returns the names of the volumes that had a handle when they were
// last read.
func (r *reader) volumesWith(handle string) []string {
	names, _ := r.handles.Get(handle)
	list, _ := names.([]string)
	return list
}

// forget has the next inspection read an object again.
func (r *reader) forget(resource, namespace, name string) {
	r.objects.Remove(keyOf(resource, namespace, name))
}

// recall returns an object for an inspection: from its informer if there is one,
// else from the cache, else from the API. While the API cannot be asked, the
// cached object stays valid.
func recall[T apiObject](ctx context.Context, r *reader, k kind[T], namespace, name string) (T, error) {
	var none T
	if i, watched := r.watched[k.resource]; watched {
		if err := i.listed(); err != nil {
			return none, err
		}
		o, _ := one[T](i, storeKey(namespace, name))
		return o, nil
	}
	kept, known := r.objects.Get(keyOf(k.resource, namespace, name))
	before, _ := kept.(cached)
	if known && time.Now().Before(before.until) {
		o, _ := before.object.(T)
		return o, nil
	}
	o, err := get(ctx, r, k, namespace, name)
	if err != nil && known {
		before.until = time.Now().Add(absentTTL)
		r.objects.Add(keyOf(k.resource, namespace, name), before)
		o, _ = before.object.(T)
		return o, nil
	}
	return o, err
}

// last returns what the API last said of an object, through its informer or a
// read; false: nothing is known of it.
func last[T apiObject](r *reader, k kind[T], namespace, name string) (o T, known bool) {
	if kept, found := r.objects.Get(keyOf(k.resource, namespace, name)); found {
		o, _ = kept.(cached).object.(T)
		known = true
	}
	i, watched := r.watched[k.resource]
	if !watched || i.listed() != nil {
		return o, known
	}
	informed, found := one[T](i, storeKey(namespace, name))
	if !found {
		return o, true
	}
	var none T
	if apiObject(o) == apiObject(none) {
		return informed, true
	}
	if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), informed.GetResourceVersion()); err == nil && order > 0 {
		return o, true
	}
	return informed, true
}

// storeKey returns the key under which informers keep an object.
func storeKey(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}
