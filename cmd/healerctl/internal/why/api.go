package why

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

const (
	// requestTimeout bounds one request, apiTimeout all of them: an API that answers none
	// costs a person no more than that.
	requestTimeout = 10 * time.Second
	apiTimeout     = time.Minute
	// pageSize is how many objects one request asks for.
	pageSize = 500
)

var (
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodes       = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	claims      = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	volumes     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	events      = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	attachments = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}
)

// api reads with the caller's rights.
type api struct {
	dynamic  dynamic.Interface
	metadata metadata.Interface
	// namespace is that of the subject.
	namespace string
	answer    *Answer
}

func connect(config *rest.Config, namespace string, answer *Answer) (a *api, err error) {
	a = &api{namespace: namespace, answer: answer}
	if a.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	a.metadata, err = metadata.NewForConfig(config)
	return a, err
}

// get returns an object.
func get[T any](ctx context.Context, a *api, of schema.GroupVersionResource, namespace, name string) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	raw, err := a.dynamic.Resource(of).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return decode[T](raw)
}

func decode[T any](raw *unstructured.Unstructured) (*T, error) {
	object := new(T)
	return object, runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, object)
}

// each calls visit for all objects of a kind that a field selector fits.
func each[T any](ctx context.Context, a *api, of schema.GroupVersionResource, namespace, fields string, visit func(*T)) error {
	for options := (metav1.ListOptions{Limit: pageSize, FieldSelector: fields}); ; {
		page, err := a.page(ctx, of, namespace, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			object, err := decode[T](&page.Items[i])
			if err != nil {
				return err
			}
			visit(object)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

func (a *api) page(ctx context.Context, of schema.GroupVersionResource, namespace string, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return a.dynamic.Resource(of).Namespace(namespace).List(ctx, options)
}

// read notes what could not be read, and reports whether it was. Which right is missing is in
// the API's own text. An object that is not there has been read.
func (a *api) read(what string, err error) bool {
	if err != nil && !apierrors.IsNotFound(err) {
		a.answer.Unread = append(a.answer.Unread, fmt.Sprintf("%s: %v", what, err))
	}
	return err == nil
}

// unknownKind reports whether the cluster does not have a kind at all.
func unknownKind(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
