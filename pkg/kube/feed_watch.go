package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// listTime bounds a list, beginTime the wait for a watch to begin: the client
	// itself waits for ever for an answer on a connection that stands.
	listTime  = 2 * time.Minute
	beginTime = 30 * time.Second
	// unreachedPause is the longest pause, with as much again by chance, after
	// which an API that is not reached is asked again.
	unreachedPause = 10 * time.Second
)

// list reads objects for the informer, where the API streams no lists: a page at
// a time. Version 0 would give all at once, out of the API's cache: that takes
// twice the memory here, and may be of long ago.
func (f *feed) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	var list runtime.Object
	err := f.reach(ctx, func() (err error) {
		bounded, cancel := context.WithTimeout(ctx, listTime)
		defer cancel()
		list, err = f.source.list(bounded, o)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			f.fail(err)
		}
		return nil, err
	}
	// The informer strips objects when it has all pages. Until then this would be
	// most of it.
	return list, meta.EachListItem(list, func(one runtime.Object) error {
		if object, ok := one.(metav1.Object); ok {
			object.SetManagedFields(nil)
		}
		return nil
	})
}

// watch begins a watch for the informer.
func (f *feed) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	streamed := o.SendInitialEvents != nil && *o.SendInitialEvents
	var w watch.Interface
	var cancel context.CancelFunc
	err := f.reach(ctx, func() (err error) {
		var own context.Context
		own, cancel = context.WithCancel(ctx)
		late := time.AfterFunc(beginTime, cancel)
		defer late.Stop()
		if w, err = f.source.watch(own, o); err != nil {
			cancel()
		}
		return err
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, err
	case err != nil && streamed:
		// An older API cannot stream the list. A list follows, and fails too if
		// there is more to it.
		return nil, noBackoff(err)
	case err != nil:
		f.fail(err)
		return nil, err
	}
	return f.follow(w, streamed, cancel), nil
}

// reach asks again until the API answers, be it with an error. The informer would
// wait twice as long after each failure, up to a minute, and count the failures
// of earlier outages: after some, it is blind long after the API is back.
func (f *feed) reach(ctx context.Context, ask func() error) error {
	pause := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 16, Cap: unreachedPause}
	for {
		err := ask()
		if err == nil || hasAnswered(err) || ctx.Err() != nil {
			return err
		}
		f.fail(err)
		select {
		case <-time.After(pause.Step()):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// noBackoff hides an error after which the informer would sleep for up to a
// minute, also when it is told to stop (client-go's Reflector.watchList). After
// others, and after this one, it asks for a list, and backs off when that fails.
func noBackoff(err error) error {
	if apierrors.IsTooManyRequests(err) {
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
	// last is when it brought something, mute is true once that is too long ago.
	last time.Time
	mute bool
}

// shortWatch is for how long a watch at least stands that was one, although it
// brought nothing: some proxy may have accepted it and hung up.
const shortWatch = time.Second

// muteWatch is after how long a watch that brings nothing is given up. The API
// sends a bookmark about every minute; a connection that is half dead brings none.
const muteWatch = 150 * time.Second

// follow hands on what a watch brings, until it ends. With the list in the
// stream, it stands only when all of that has come.
func (f *feed) follow(w watch.Interface, streamed bool, done func()) watch.Interface {
	to := &followed{Interface: w, out: make(chan watch.Event), done: make(chan struct{})}
	if !streamed {
		f.begin(to)
	}
	f.watches.Go(func() {
		defer close(to.out)
		defer f.end(to)
		defer done()
		bell := time.AfterFunc(muteWatch, func() { f.mute(to) })
		defer bell.Stop()
		for event := range w.ResultChan() {
			bell.Reset(muteWatch)
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

// mute ends a watch that has brought nothing for too long.
func (f *feed) mute(w *followed) {
	f.mu.Lock()
	w.mute = true
	f.mu.Unlock()
	w.Interface.Stop()
}

// ResultChan implements watch.Interface.
func (w *followed) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *followed) Stop() {
	w.once.Do(func() { close(w.done) })
	w.Interface.Stop()
}

func isListEnd(o runtime.Object) bool {
	object, ok := o.(metav1.Object)
	return ok && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
