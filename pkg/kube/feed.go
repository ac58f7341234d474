package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// source is how one kind of object is read.
type source struct {
	what  request
	kind  runtime.Object
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// strip throws away what nobody here asks for.
	strip cache.TransformFunc
	index cache.Indexers
}

// feed keeps the objects of one source in memory, and knows whether what it has
// is true: an informer alone goes on to show what it has, for ever.
type feed struct {
	source   source
	informer cache.SharedIndexInformer
	// watches waits for the goroutines that follow them.
	watches sync.WaitGroup

	mu sync.Mutex
	// stands is the watch that brings every change, nil while there is none.
	stands *followed
	// lost is when the last watch ended, zero before the first one stood.
	lost time.Time
	// err is why there is no watch, nil while one is being made anew.
	err error
	// failed is closed with the first failure that the API itself told.
	failed chan struct{}
	once   sync.Once
}

func newFeed(s source) (*feed, error) {
	f := &feed{source: s, failed: make(chan struct{})}
	f.informer = cache.NewSharedIndexInformer(
		&cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}, s.kind, 0, s.index)
	if err := f.informer.SetTransform(s.strip); err != nil {
		return nil, fmt.Errorf("watch %s: %w", s.what.Resource, err)
	}
	// What it would log on every attempt, fail has logged once.
	err := f.informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", s.what.Resource, err)
	}
	return f, nil
}

// run keeps it up to date until ctx ends, and returns when all has stopped.
func (f *feed) run(ctx context.Context) {
	f.informer.RunWithContext(ctx)
	f.watches.Wait()
}

// begin notes that a watch brings every change from now on.
func (f *feed) begin(w *followed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		klog.InfoS("The Kubernetes API answers again", "resource", f.source.what.Resource)
	}
	w.began, w.last = time.Now(), time.Now()
	f.stands, f.err = w, nil
}

// note notes that a watch brought something.
func (f *feed) note(w *followed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.brought, w.last = true, time.Now()
}

// end notes the end of a watch. Another one may stand by then: nobody waits for
// the last words of a watch that was given up.
func (f *feed) end(w *followed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stands == w {
		f.lose()
	}
}

// fail notes why there is no list or no watch.
func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stands != nil {
		f.lose()
	}
	// What the API answers is worth a line when it changes. The texts of broken
	// connections differ each time.
	if f.err == nil || hasAnswered(err) && f.err.Error() != err.Error() {
		klog.ErrorS(err, "Cannot learn what the cluster wants", "resource", f.source.what.Resource)
	}
	f.err = err
	if hasAnswered(err) { // one that is not reached may be in a moment
		f.once.Do(func() { close(f.failed) })
	}
}

// hasAnswered is true for an error that the API itself sent.
func hasAnswered(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer)
}

// lose is called with the lock held, while a watch stands.
func (f *feed) lose() {
	switch w := f.stands; {
	case w.mute:
		f.lost = w.last // who knows what came since
	case w.brought || time.Since(w.began) >= shortWatch:
		f.lost = time.Now()
	}
	f.stands = nil
}

// trouble says why what the feed has may be older than a time; nil if it is not.
func (f *feed) trouble(staleness time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.informer.HasSynced() && f.err != nil:
		return f.err
	case !f.informer.HasSynced():
		return fmt.Errorf("the list of %s has not come yet", f.source.what.Resource)
	case f.stands != nil || time.Since(f.lost) <= staleness:
		return nil
	case f.err != nil:
		return f.err
	default:
		return fmt.Errorf("the watch of %s has not come back", f.source.what.Resource)
	}
}

// settled waits for the first list, or the first failure to get one.
func (f *feed) settled(ctx context.Context) {
	select {
	case <-f.informer.HasSyncedChecker().Done():
	case <-f.failed:
	case <-ctx.Done():
	}
}
