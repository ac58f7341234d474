package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
)

// list reads all objects for the informer.
func (f *feed) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := f.source.list(ctx, o)
	if err != nil && ctx.Err() == nil {
		f.fail(err)
	}
	return list, err
}

// watch begins a watch for the informer.
func (f *feed) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	streamed := o.SendInitialEvents != nil && *o.SendInitialEvents
	w, err := f.source.watch(ctx, o)
	switch {
	case err != nil && streamed:
		// An older API cannot stream the list. A list follows, and fails too if
		// there is more to it.
		return nil, noBackoff(err)
	case err != nil && ctx.Err() != nil:
		return nil, err
	case err != nil:
		f.fail(err)
		return nil, err
	}
	return f.follow(w, streamed), nil
}

// noBackoff hides errors after which the informer would sleep for up to a
// minute, also when it is told to stop (client-go's Reflector.watchList). After
// others, and after this one, it asks for a list, and backs off when that fails.
func noBackoff(err error) error {
	if utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
		return errors.New(err.Error())
	}
	return err
}

// followed is a watch whose end is noted.
type followed struct {
	watch.Interface

	out  chan watch.Event
	done chan struct{}
	once sync.Once

	// began is when it brought every change, brought is true when it brought
	// anything since; both belong to the feed's lock.
	began   time.Time
	brought bool
}

// shortWatch is for how long a watch at least stands that was one, although it
// brought nothing: some proxy may have accepted it and hung up.
const shortWatch = time.Second

// follow hands on what a watch brings, until it ends. With the list in the
// stream, it stands only when all of that has come.
func (f *feed) follow(w watch.Interface, streamed bool) watch.Interface {
	to := &followed{Interface: w, out: make(chan watch.Event), done: make(chan struct{})}
	if !streamed {
		f.begin(to)
	}
	f.watches.Go(func() {
		defer close(to.out)
		defer f.end(to)
		for event := range w.ResultChan() {
			if event.Type == watch.Bookmark && isListEnd(event.Object) {
				f.begin(to)
			}
			if event.Type != watch.Error {
				f.note(to)
			}
			select {
			case to.out <- event:
			case <-to.done:
				return
			}
		}
	})
	return to
}

// ResultChan implements watch.Interface.
func (w *followed) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *followed) Stop() {
	w.once.Do(func() { close(w.done) })
	w.Interface.Stop()
}

func isListEnd(o runtime.Object) bool {
	meta, ok := o.(metav1.Object)
	return ok && meta.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
