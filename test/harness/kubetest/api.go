// Package kubetest fakes the Kubernetes API for tests, without a network, so that
// clocks can be faked too.
package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// API is a Kubernetes API for what a real one cannot be made to do. It has objects
// of the kinds that a cluster.Cluster reads, lists them, also in pages, and serves
// watches from any resource version. It ignores field selectors: every pod is on the
// node.
type API struct {
	mu      sync.Mutex
	kinds   *runtime.Scheme
	objects map[string]Object // by resource, namespace and name
	Version int
	history []change
	watches map[*apiWatch]bool
	asked   map[string]int // by verb and resource

	// Stalled stops the watches' events, as if all of them were late.
	Stalled bool
	// Continued, if set, is called before the next page of a list; its error is
	// answered.
	Continued func() error
	// Fault, if set, is called first. An API's error is
	// answered, another one cuts the connection.
	Fault func(verb, resource string) error
}

type change struct {
	version  int
	resource string
	event    watch.EventType
	object   Object
}

// Object is an object of the API.
type Object interface {
	runtime.Object
	metav1.Object
}

func keyOf(resource, namespace, name string) string { return resource + " " + namespace + "/" + name }

// ErrNoAnswer has a request wait until the client gives up.
var ErrNoAnswer = errors.New("no answer")

// NewAPI returns an API without objects.
func NewAPI() *API {
	a := &API{
		kinds: runtime.NewScheme(), objects: map[string]Object{}, Version: 1,
		watches: map[*apiWatch]bool{}, asked: map[string]int{},
	}
	_ = corev1.AddToScheme(a.kinds)
	_ = storagev1.AddToScheme(a.kinds)
	return a
}

// Set changes how the API behaves.
func (a *API) Set(change func(*API)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// Break has every request fail with err, and ends all watches; nil ends that.
func (a *API) Break(err error) {
	a.Set(func(a *API) {
		if a.Fault = nil; err != nil {
			a.Fault = func(string, string) error { return err }
		}
		if err != nil && !errors.Is(err, ErrNoAnswer) {
			a.closeWatches()
		}
	})
}

// BreakFor has some requests fail with err.
func (a *API) BreakFor(err error, verb string, resources ...string) {
	a.Set(func(a *API) {
		a.Fault = func(asked, resource string) error {
			if asked == verb && slices.Contains(resources, resource) {
				return err
			}
			return nil
		}
	})
}

// ErrRefused is what a client sees when no API listens.
var ErrRefused = syscall.ECONNREFUSED

// Put adds an object, or changes it.
func (a *API) Put(objects ...Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range objects {
		resource := a.resourceOf(o)
		a.Version++
		o.SetResourceVersion(strconv.Itoa(a.Version))
		if o.GetUID() == "" {
			o.SetUID(types.UID("uid-of-" + o.GetName()))
		}
		event := watch.Added
		if _, exists := a.objects[keyOf(resource, o.GetNamespace(), o.GetName())]; exists {
			event = watch.Modified
		}
		o = o.DeepCopyObject().(Object)
		a.objects[keyOf(resource, o.GetNamespace(), o.GetName())] = o
		a.notify(change{version: a.Version, resource: resource, event: event, object: o})
	}
}

// Remove deletes an object for good.
func (a *API) Remove(o Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := a.resourceOf(o)
	key := keyOf(resource, o.GetNamespace(), o.GetName())
	last := a.objects[key].DeepCopyObject().(Object)
	delete(a.objects, key)
	a.Version++
	last.SetResourceVersion(strconv.Itoa(a.Version))
	a.notify(change{version: a.Version, resource: resource, event: watch.Deleted, object: last})
}

// Count returns how often a request was sent, such as "list pods".
func (a *API) Count(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[what]
}

func (a *API) notify(c change) {
	a.history = append(a.history, c)
	for w := range a.watches {
		if !a.Stalled && w.resource == c.resource {
			w.send(c.event, a.typed(c.object))
		}
	}
}

// closeWatches is called with the lock held.
func (a *API) closeWatches() {
	for w := range a.watches {
		close(w.lines)
	}
	clear(a.watches)
}

func (a *API) resourceOf(o runtime.Object) string {
	return strings.ToLower(a.kindOf(o).Kind) + map[bool]string{true: "es", false: "s"}[strings.HasSuffix(a.kindOf(o).Kind, "s")]
}

func (a *API) kindOf(o runtime.Object) schema.GroupVersionKind {
	kinds, _, err := a.kinds.ObjectKinds(o)
	if err != nil {
		panic(err)
	}
	return kinds[0]
}

// RoundTrip implements http.RoundTripper.
func (a *API) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	verb, resource, namespace, name := read(r)
	a.asked[verb+" "+resource]++
	if a.Fault != nil {
		err := a.Fault(verb, resource)
		if errors.Is(err, ErrNoAnswer) {
			a.mu.Unlock()
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		if err != nil {
			defer a.mu.Unlock()
			return RespondError(err)
		}
	}
	defer a.mu.Unlock()
	switch verb {
	case "list":
		return a.list(r, resource)
	case "watch":
		return a.watch(r, resource), nil
	}
	o, exists := a.objects[keyOf(resource, namespace, name)]
	if !exists {
		return RespondError(apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name))
	}
	return Respond(http.StatusOK, a.typed(o)), nil
}

// read returns the parts of a request.
func read(r *http.Request) (verb, resource, namespace, name string) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	parts = parts[slices.Index(parts, "v1")+1:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	switch resource = parts[0]; {
	case len(parts) > 1:
		return "get", resource, namespace, parts[1]
	case r.URL.Query().Get("watch") != "":
		return "watch", resource, namespace, ""
	}
	return "list", resource, namespace, ""
}

// typed returns a copy of an object with its kind.
func (a *API) typed(o Object) Object {
	o = o.DeepCopyObject().(Object)
	o.GetObjectKind().SetGroupVersionKind(a.kindOf(o))
	return o
}

// all returns the objects of a resource in the order of their names.
func (a *API) all(resource string) []Object {
	var list []Object
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		if strings.HasPrefix(key, resource+" ") {
			list = append(list, a.objects[key])
		}
	}
	return list
}

func (a *API) list(r *http.Request, resource string) (*http.Response, error) {
	all, more := a.all(resource), ""
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	if from > 0 && a.Continued != nil {
		a.mu.Unlock()
		err := a.Continued()
		a.mu.Lock()
		if err != nil {
			return RespondError(err)
		}
		all = a.all(resource)
	}
	all = all[min(from, len(all)):]
	// From its cache the API sends everything at once.
	cached := r.URL.Query().Get("resourceVersion") == "0"
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && limit < len(all) && !cached {
		all, more = all[:limit], strconv.Itoa(from+limit)
	}
	items := make([]any, 0, len(all))
	for _, o := range all {
		items = append(items, a.typed(o))
	}
	kind, version := "List", "v1"
	if len(all) > 0 {
		kind, version = a.kindOf(all[0]).Kind+"List", a.kindOf(all[0]).GroupVersion().String()
	}
	return Respond(http.StatusOK, map[string]any{
		"kind": kind, "apiVersion": version, "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.Version), "continue": more},
	}), nil
}

// apiWatch is one watch that a client has.
type apiWatch struct {
	resource string
	lines    chan []byte
}

func (w *apiWatch) send(event watch.EventType, o any) {
	line, _ := json.Marshal(map[string]any{"type": event, "object": o})
	w.lines <- line
}

func (a *API) watch(r *http.Request, resource string) *http.Response {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w := &apiWatch{resource: resource, lines: make(chan []byte, 10_000)}
	for _, c := range a.history {
		if c.version > from && c.resource == resource && !a.Stalled {
			w.send(c.event, a.typed(c.object))
		}
	}
	a.watches[w] = true
	response := Respond(http.StatusOK, nil)
	response.Body = a.stream(r.Context(), w)
	return response
}

// stream sends the lines of a watch until either side closes it.
func (a *API) stream(ctx context.Context, w *apiWatch) io.ReadCloser {
	body, to := io.Pipe()
	go func() {
		defer to.Close()
		defer a.Set(func(a *API) { delete(a.watches, w) })
		for {
			select {
			case line, more := <-w.lines:
				if !more {
					return
				}
				if _, err := to.Write(line); err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return body
}

// Respond returns a response with an object as JSON.
func Respond(code int, o any) *http.Response {
	body, _ := json.Marshal(o)
	return &http.Response{
		StatusCode: code, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(bytes.NewReader(body)),
	}
}

// RespondError returns the response for an error of the API; any other error is
// that of the connection.
func RespondError(err error) (*http.Response, error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return nil, err
	}
	s := status.Status()
	s.Kind, s.APIVersion = "Status", "v1"
	return Respond(int(s.Code), s), nil
}
