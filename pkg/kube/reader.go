package kube

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
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/lru"

	"golang.org/x/sync/singleflight"
)

const (
	// rememberTime is for how long at most a look goes by what was read before;
	// absentTime is the same for what was not there, or could not be read again.
	rememberTime = time.Hour
	absentTime   = time.Minute
	// rememberJitter spreads the next reads over the time: a part of it.
	rememberJitter = 0.2
	// maxRemembered objects: more than the volumes, claims and classes of one node.
	maxRemembered = 2048
	// silentTime is for how long an API that did not answer is not asked again: a
	// volume may have many mount points, and each would wait for it.
	silentTime = 3 * time.Second
)

// reader reads objects by name, and remembers the most recent ones.
type reader struct {
	client *Client
	// watched are kept up to date; by resource.
	watched map[string]*informer
	asking  singleflight.Group
	// kept has a remembered by a name; handles the names of volumes by a handle.
	kept, handles *lru.Cache

	mu sync.Mutex
	// silence is why the API did not answer, silentUntil when it is asked again.
	silence     error
	silentUntil time.Time
}

// remembered is what the API last said of one name.
type remembered struct {
	object apiObject // nil: there is none
	until  time.Time
}

func newReader(c *Client, watched ...*informer) *reader {
	r := &reader{client: c, watched: map[string]*informer{}, kept: lru.New(maxRemembered), handles: lru.New(maxRemembered)}
	for _, i := range watched {
		r.watched[i.what.Resource] = i
	}
	return r
}

func keyOf(resource, namespace, name string) string { return resource + " " + namespace + "/" + name }

// ask reads an object as it is now; nil: there is none.
func ask[T apiObject](ctx context.Context, r *reader, k kind[T], namespace, name string) (T, error) {
	got, err := r.share(ctx, keyOf(k.resource, namespace, name), func(ctx context.Context) (any, error) {
		o := k.empty()
		err := r.client.get(ctx, request{Group: k.group, Resource: k.resource, Namespace: namespace, Name: name}, o)
		switch {
		case err == nil:
			k.keep(o)
			r.remember(k.resource, namespace, name, o)
			return o, nil
		case apierrors.IsNotFound(err):
			r.remember(k.resource, namespace, name, nil)
			return nil, nil
		}
		return nil, err
	})
	o, _ := got.(T)
	return o, err
}

// share lets those who need the same answer of the API at once ask once. Nobody gets
// an answer to a question that was put before his own need arose: who finds one under
// way waits for its end, and shares the next.
func (r *reader) share(ctx context.Context, what string, ask func(context.Context) (any, error)) (any, error) {
	for waited := false; ; waited = true {
		own := false
		answer := r.asking.DoChan(what, func() (any, error) {
			own = true
			if err := r.silent(); err != nil {
				return nil, err
			}
			// Whoever asked may leave: that is no answer for the others.
			got, err := ask(context.WithoutCancel(ctx))
			return got, r.heard(err)
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

// silent says why the API is not asked now.
func (r *reader) silent() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.silentUntil) {
		return r.silence
	}
	return nil
}

// heard takes note of whether the API answered, and says it in the error.
func (r *reader) heard(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silentUntil = (time.Time{}); !silence(err) {
		return err
	}
	r.silence, r.silentUntil = fmt.Errorf("the Kubernetes API does not answer: %w", err), time.Now().Add(silentTime)
	return r.silence
}

// silence is true for an error that says that the API cannot be reached, or
// cannot answer now. Any other is an answer.
func silence(err error) bool {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return false
	case !hasAnswered(err):
		return true
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) // as when it does not reach its own store
}

// hasAnswered is true for an error that the API itself sent.
func hasAnswered(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer)
}

func (r *reader) remember(resource, namespace, name string, o apiObject) {
	lasts := absentTime
	if o != nil {
		lasts = rememberTime
	}
	lasts -= time.Duration(float64(lasts) * rememberJitter * rand.Float64()) //nolint:gosec // no secret
	r.kept.Add(keyOf(resource, namespace, name), remembered{o, time.Now().Add(lasts)})
	if pv, is := o.(*corev1.PersistentVolume); is && pv.Spec.CSI != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if names := r.named(pv.Spec.CSI.VolumeHandle); !slices.Contains(names, name) && len(names) < maxSameHandle {
			r.handles.Add(pv.Spec.CSI.VolumeHandle, append(slices.Clone(names), name))
		}
	}
}

// maxSameHandle bounds the volumes that are remembered of one handle.
const maxSameHandle = 16

// named gives the volumes that had a handle when they were last read.
func (r *reader) named(handle string) []string {
	names, _ := r.handles.Get(handle)
	list, _ := names.([]string)
	return list
}

// forget has the next look read an object anew.
func (r *reader) forget(resource, namespace, name string) {
	r.kept.Remove(keyOf(resource, namespace, name))
}

// recall gives an object for a look: of what is watched what the informer has, of
// all else what was read within the hour, or is read now. When the API does not
// answer, what it last said counts for as long as it takes.
func recall[T apiObject](ctx context.Context, r *reader, k kind[T], namespace, name string) (T, error) {
	var none T
	if i, watched := r.watched[k.resource]; watched {
		if err := i.listed(); err != nil {
			return none, err
		}
		o, _ := one[T](i, storeKey(namespace, name))
		return o, nil
	}
	kept, known := r.kept.Get(keyOf(k.resource, namespace, name))
	if last, _ := kept.(remembered); known && time.Now().Before(last.until) {
		o, _ := last.object.(T)
		return o, nil
	}
	o, err := ask(ctx, r, k, namespace, name)
	if last, _ := kept.(remembered); err != nil && known {
		last.until = time.Now().Add(absentTime)
		r.kept.Add(keyOf(k.resource, namespace, name), last)
		o, _ = last.object.(T)
		return o, nil
	}
	return o, err
}

// last gives what the API last said of an object, by the informer or when it was
// asked; false: it never said anything.
func last[T apiObject](r *reader, k kind[T], namespace, name string) (o T, known bool) {
	if kept, found := r.kept.Get(keyOf(k.resource, namespace, name)); found {
		o, _ = kept.(remembered).object.(T)
		known = true
	}
	i, watched := r.watched[k.resource]
	if !watched || i.listed() != nil {
		return o, known
	}
	seen, found := one[T](i, storeKey(namespace, name))
	if !found {
		return o, true
	}
	var none T
	if apiObject(o) == apiObject(none) {
		return seen, true
	}
	if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), seen.GetResourceVersion()); err == nil && order > 0 {
		return o, true
	}
	return seen, true
}

// storeKey is the key by which informers keep an object.
func storeKey(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}
