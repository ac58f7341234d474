package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// object is what the API has, as JSON.
type object = map[string]any

// memoryAPI is an API without a network that reads, creates and patches objects of any
// kind.
type memoryAPI struct {
	mu      sync.Mutex
	objects map[string]object // by path
	version int
	asked   map[string]int // by verb and resource
	// invalid is the claim whose patches are refused.
	invalid string
	// fault, if set, is called first.
	fault func(verb, resource string) error
}

func newMemoryAPI() *memoryAPI {
	return &memoryAPI{objects: map[string]object{}, asked: map[string]int{}}
}

// client returns a client of this API.
func (a *memoryAPI) client(t *testing.T) *client {
	t.Helper()
	c, err := newClient(Config{Access: &rest.Config{Host: "http://api.example.com", Transport: a}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var errNoAPI = errors.New("connection refused")

// RoundTrip implements http.RoundTripper.
func (a *memoryAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	collection, name := split(r.URL.Path)
	resource := collection[strings.LastIndex(collection, "/")+1:]
	verb := map[string]string{"GET": "get", "POST": "create", "PATCH": "patch"}[r.Method]
	a.asked[verb+" "+resource]++
	a.asked[""]++
	if a.fault != nil {
		if err := a.fault(verb, resource); err != nil {
			return kubetest.RespondError(err)
		}
	}
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	got, err := a.serve(verb, resource, collection, name, body)
	if err != nil {
		return kubetest.RespondError(err)
	}
	return kubetest.Respond(http.StatusOK, got), nil
}

// split returns the path of a collection and the name of an object in it.
func split(path string) (collection, name string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	depth := slices.Index(parts, "namespaces") + 3
	if len(parts) > depth {
		return strings.Join(parts[:depth], "/"), parts[depth]
	}
	return strings.Join(parts, "/"), ""
}

func (a *memoryAPI) serve(verb, resource, collection, name string, body []byte) (object, error) {
	kind := schema.GroupResource{Resource: resource}
	path := collection + "/" + name
	now, exists := a.objects[path]
	switch {
	case verb == "create":
		made, err := decode(body)
		if err != nil {
			return nil, err
		}
		meta := made["metadata"].(object)
		// The recorder makes names of the time, which stands still in a bubble.
		for a.objects[collection+"/"+meta["name"].(string)] != nil {
			meta["name"] = meta["name"].(string) + "-next"
		}
		path = collection + "/" + meta["name"].(string)
		return a.put(path, made), nil
	case !exists:
		return nil, apierrors.NewNotFound(kind, name)
	case verb == "patch" && name == a.invalid:
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolumeClaim"}, name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "annotations"), "x", "a webhook does not like it"),
		})
	case verb == "patch":
		var change object
		if err := json.Unmarshal(body, &change); err != nil {
			return nil, err
		}
		meta, _ := change["metadata"].(object)
		if uid, given := meta["uid"]; given && uid != now["metadata"].(object)["uid"] {
			return nil, apierrors.NewInvalid(schema.GroupKind{Kind: resource}, name, field.ErrorList{ // as the real one says it
				field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable"),
			})
		}
		return a.put(path, merge(now, change)), nil
	}
	return now, nil
}

// put stores an object.
func (a *memoryAPI) put(path string, o object) object {
	a.version++
	meta := o["metadata"].(object)
	meta["resourceVersion"] = fmt.Sprint(a.version)
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprintf("uid-%d", a.version)
	}
	a.objects[path] = o
	return o
}

// merge is a merge patch (RFC 7386).
func merge(old, change object) object {
	merged := maps.Clone(old)
	for k, v := range change {
		before, isObject := merged[k].(object)
		after, becomesObject := v.(object)
		switch {
		case v == nil:
			delete(merged, k)
		case isObject && becomesObject:
			merged[k] = merge(before, after)
		default:
			merged[k] = v
		}
	}
	return merged
}

// decode reads what clients send: JSON, or protobuf of the core group.
func decode(body []byte) (object, error) {
	if bytes.HasPrefix(body, []byte("k8s\x00")) {
		scheme := runtime.NewScheme()
		if err := corev1.AddToScheme(scheme); err != nil {
			return nil, err
		}
		typed, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, err
		}
		if body, err = json.Marshal(typed); err != nil {
			return nil, err
		}
	}
	var o object
	return o, json.Unmarshal(body, &o)
}

// add puts a claim into the API.
func (a *memoryAPI) add(t *testing.T, o metav1.Object) {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	made, err := decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put("api/v1/namespaces/"+o.GetNamespace()+"/persistentvolumeclaims/"+o.GetName(), made)
}

// of returns the objects of one resource, by name.
func (a *memoryAPI) of(resource string) map[string]object {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := map[string]object{}
	for path, o := range a.objects {
		if collection, name := split(path); strings.HasSuffix(collection, "/"+resource) {
			found[name] = o
		}
	}
	return found
}

// count returns how often a request was sent: "get pods", or "" for anything.
func (a *memoryAPI) count(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[what]
}

// set changes how the API answers.
func (a *memoryAPI) set(fault func(verb, resource string) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = fault
}

func claimNamed(name string, uid types.UID) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{Kind: "PersistentVolumeClaim", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name, UID: uid},
	}
}

// same compares an object of the API with JSON, without what the API adds.
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
