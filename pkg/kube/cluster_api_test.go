package kube

import (
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
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// clusterAPI is an API without a network, for what the real one cannot be made
// to do: it has objects of the kinds that a Cluster reads, lists them, in pages
// too, streams lists, and serves watches from any version that it remembers. It
// knows no field selectors: every pod is on the node.
type clusterAPI struct {
	mu      sync.Mutex
	kinds   *runtime.Scheme
	objects map[string]apiObject // by resource, namespace and name
	version int
	history []change
	watches map[*apiWatch]bool
	asked   map[string]int // by verb and resource

	// mute has watches bring nothing, as if all news were late.
	mute bool
	// continued, if set, is called before a list goes on; an error is answered.
	continued func() error
	// fault, if set, is asked before anything is done. An API's error is
	// answered, another one cuts the connection.
	fault func(verb, resource string) error
}

type change struct {
	version  int
	resource string
	event    watch.EventType
	object   apiObject
}

// errSilent has a request wait for ever.
var errSilent = errors.New("no answer")

func newClusterAPI() *clusterAPI {
	a := &clusterAPI{
		kinds: runtime.NewScheme(), objects: map[string]apiObject{}, version: 1,
		watches: map[*apiWatch]bool{}, asked: map[string]int{},
	}
	_ = corev1.AddToScheme(a.kinds)
	_ = storagev1.AddToScheme(a.kinds)
	return a
}

// client speaks to the API without a network, so that clocks can be faked.
func (a *clusterAPI) client(t *testing.T) *Client {
	t.Helper()
	c, err := newClient(&rest.Config{Host: "http://api.example.com", QPS: -1}, &http.Client{Transport: a}, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// set changes how the API behaves.
func (a *clusterAPI) set(change func(*clusterAPI)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// breaks has every request fail with err, and ends all watches; nil mends it.
func (a *clusterAPI) breaks(err error) {
	a.set(func(a *clusterAPI) {
		if a.fault = nil; err != nil {
			a.fault = func(string, string) error { return err }
		}
		if err != nil && !errors.Is(err, errSilent) {
			a.hangUp()
		}
	})
}

// breaksFor has some requests fail with err.
func (a *clusterAPI) breaksFor(err error, verb string, resources ...string) {
	a.set(func(a *clusterAPI) {
		a.fault = func(asked, resource string) error {
			if asked == verb && slices.Contains(resources, resource) {
				return err
			}
			return nil
		}
	})
}

// refused is what a client sees when no API listens.
var refused = syscall.ECONNREFUSED

// put adds an object, or changes it.
func (a *clusterAPI) put(objects ...apiObject) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range objects {
		resource := a.resourceOf(o)
		a.version++
		o.SetResourceVersion(strconv.Itoa(a.version))
		if o.GetUID() == "" {
			o.SetUID(types.UID("uid-of-" + o.GetName()))
		}
		event := watch.Added
		if _, exists := a.objects[keyOf(resource, o.GetNamespace(), o.GetName())]; exists {
			event = watch.Modified
		}
		o = o.DeepCopyObject().(apiObject)
		a.objects[keyOf(resource, o.GetNamespace(), o.GetName())] = o
		a.tell(change{a.version, resource, event, o})
	}
}

// remove deletes an object for good.
func (a *clusterAPI) remove(o apiObject) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := a.resourceOf(o)
	key := keyOf(resource, o.GetNamespace(), o.GetName())
	last := a.objects[key].DeepCopyObject().(apiObject)
	delete(a.objects, key)
	a.version++
	last.SetResourceVersion(strconv.Itoa(a.version))
	a.tell(change{a.version, resource, watch.Deleted, last})
}

// count is how often something was asked, such as "list pods".
func (a *clusterAPI) count(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[what]
}

func (a *clusterAPI) tell(c change) {
	a.history = append(a.history, c)
	for w := range a.watches {
		if !a.mute && w.resource == c.resource {
			w.bring(c.event, w.shape(c.object))
		}
	}
}

// hangUp is called with the lock held.
func (a *clusterAPI) hangUp() {
	for w := range a.watches {
		close(w.lines)
	}
	clear(a.watches)
}

func (a *clusterAPI) resourceOf(o runtime.Object) string {
	return strings.ToLower(a.kindOf(o).Kind) + map[bool]string{true: "es", false: "s"}[strings.HasSuffix(a.kindOf(o).Kind, "s")]
}

func (a *clusterAPI) kindOf(o runtime.Object) schema.GroupVersionKind {
	kinds, _, err := a.kinds.ObjectKinds(o)
	if err != nil {
		panic(err)
	}
	return kinds[0]
}

// RoundTrip implements http.RoundTripper.
func (a *clusterAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	verb, resource, namespace, name := read(r)
	a.asked[verb+" "+resource]++
	if a.fault != nil {
		err := a.fault(verb, resource)
		if errors.Is(err, errSilent) {
			a.mu.Unlock()
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		if err != nil {
			defer a.mu.Unlock()
			return respondError(err)
		}
	}
	defer a.mu.Unlock()
	shape := a.shapeFor(r)
	switch verb {
	case "list":
		return a.list(r, resource, shape)
	case "watch":
		return a.watch(r, resource, shape), nil
	}
	o, exists := a.objects[keyOf(resource, namespace, name)]
	if !exists {
		return respondError(apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name))
	}
	return respond(http.StatusOK, shape(o)), nil
}

// read takes a request apart.
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

// shapeFor gives how objects are sent: whole, or only their metadata.
func (a *clusterAPI) shapeFor(r *http.Request) func(apiObject) any {
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		return func(o apiObject) any {
			raw, _ := json.Marshal(o)
			var whole map[string]any
			_ = json.Unmarshal(raw, &whole)
			return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": whole["metadata"]}
		}
	}
	return func(o apiObject) any {
		o = o.DeepCopyObject().(apiObject)
		o.GetObjectKind().SetGroupVersionKind(a.kindOf(o))
		return o
	}
}

// all gives the objects of a resource in the order of their names.
func (a *clusterAPI) all(resource string) []apiObject {
	var list []apiObject
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		if strings.HasPrefix(key, resource+" ") {
			list = append(list, a.objects[key])
		}
	}
	return list
}

func (a *clusterAPI) list(r *http.Request, resource string, shape func(apiObject) any) (*http.Response, error) {
	all, more := a.all(resource), ""
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	if from > 0 && a.continued != nil {
		if err := a.continued(); err != nil {
			return respondError(err)
		}
	}
	all = all[min(from, len(all)):]
	// Out of its cache the API gives all at once.
	cached := r.URL.Query().Get("resourceVersion") == "0"
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && limit < len(all) && !cached {
		all, more = all[:limit], strconv.Itoa(from+limit)
	}
	items := make([]any, 0, len(all))
	for _, o := range all {
		items = append(items, shape(o))
	}
	kind, version := "List", "v1"
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	} else if len(all) > 0 {
		kind, version = a.kindOf(all[0]).Kind+"List", a.kindOf(all[0]).GroupVersion().String()
	}
	return respond(http.StatusOK, map[string]any{
		"kind": kind, "apiVersion": version, "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version), "continue": more},
	}), nil
}

// apiWatch is one watch that a client has.
type apiWatch struct {
	resource string
	shape    func(apiObject) any
	lines    chan []byte
}

func (w *apiWatch) bring(event watch.EventType, o any) {
	line, _ := json.Marshal(map[string]any{"type": event, "object": o})
	w.lines <- line
}

func (a *clusterAPI) watch(r *http.Request, resource string, shape func(apiObject) any) *http.Response {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w := &apiWatch{resource: resource, shape: shape, lines: make(chan []byte, 10_000)}
	for _, c := range a.history {
		if c.version > from && c.resource == resource && !a.mute {
			w.bring(c.event, shape(c.object))
		}
	}
	a.watches[w] = true
	response := respond(http.StatusOK, nil)
	response.Body = a.stream(r.Context(), w)
	return response
}

// stream sends the lines of a watch until either side hangs up.
func (a *clusterAPI) stream(ctx context.Context, w *apiWatch) io.ReadCloser {
	body, to := io.Pipe()
	go func() {
		defer to.Close()
		defer a.set(func(a *clusterAPI) { delete(a.watches, w) })
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

// same compares an object of the API with JSON, but for what the API adds.
func same(t *testing.T, got object, want string) {
	t.Helper()
	raw, _ := json.Marshal(got)
	var a, b object
	_ = json.Unmarshal(raw, &a)
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	for _, o := range []object{a, b} {
		meta, _ := o["metadata"].(object)
		delete(meta, "uid")
		delete(meta, "resourceVersion")
		delete(meta, "creationTimestamp")
	}
	left, _ := json.MarshalIndent(a, "", " ")
	right, _ := json.MarshalIndent(b, "", " ")
	if string(left) != string(right) {
		t.Errorf("got %s\nwant %s", left, right)
	}
}
