package controller

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// podsPerPage and objectsPerPage bound one answer of the API as it is sent: an object may
	// have 1.5 MB.
	podsPerPage, objectsPerPage = 10, 100
	// pageTimeout bounds the wait for a page, which keeps others from theirs, and roundTimeout a
	// sweep or search, which is followed by the next one.
	pageTimeout, roundTimeout = time.Minute, 5 * time.Minute
	// maxPageBytes bounds a page that is decoded, in which an object may take 100 times its
	// size (a pod with as many volumes as the API takes). After one that is larger the list
	// goes on with one object, and with twice as many in each page after that.
	maxPageBytes = 1 << 20
)

// listed are the resources that list reads.
var listed = []string{"pods", "persistentvolumeclaims", "persistentvolumes", "nodes", "networkfences", "poddisruptionbudgets"}

func list[T client.Object](ctx context.Context, r *Reconciler, kind client.ObjectList, page client.ListOptions, visit func(T) error) error {
	for most := page.Limit; ; page.Limit = min(most, 2*page.Limit) {
		// A list that is decoded into twice may keep fields of the first time.
		objects := kind.DeepCopyObject().(client.ObjectList) //nolint:forcetypeassert // a copy
		err := r.readPage(ctx, objects, &page)
		for ; errors.Is(err, errLargePage); err = r.readPage(ctx, objects, &page) {
			page.Limit = 1
		}
		if err != nil {
			return err
		}
		err = meta.EachListItem(objects, func(o runtime.Object) error { return visit(o.(T)) }) //nolint:forcetypeassert // the kind's
		if page.Continue = objects.GetContinue(); err != nil || page.Continue == "" {
			return err
		}
	}
}

// readPage reads a page while no other job reads one: they take turns, so that a namespace
// with many pods does not keep those of others waiting.
func (r *Reconciler) readPage(ctx context.Context, objects client.ObjectList, page *client.ListOptions) error {
	if err := r.pages.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.pages.Release(1)
	ctx, done := context.WithTimeout(ctx, pageTimeout)
	defer done()
	return r.cfg.Reader.List(ctx, objects, page)
}

// errLargePage says that a page of several objects has more bytes than maxPageBytes.
var errLargePage = errors.New("the page is too large to be decoded")

// BoundPages makes a client fail with errLargePage before it decodes a large page.
func BoundPages(next http.RoundTripper) http.RoundTripper { return boundedPages{next} }

type boundedPages struct{ next http.RoundTripper }

func (b boundedPages) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit < 2 || !slices.Contains(listed, path.Base(r.URL.Path)) {
		return resp, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxPageBytes+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxPageBytes {
		return nil, errLargePage
	}
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	return resp, nil
}
