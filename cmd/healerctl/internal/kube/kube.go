// Package kube reads objects of a Kubernetes API, and makes VolumeHealJobs, with the rights of
// whoever runs the program.
package kube

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// The kinds of objects, but those of COSI, of which a cluster has one of two versions.
var (
	Pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	Nodes       = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	Claims      = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	Volumes     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	Events      = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	Secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	Attachments = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}
	Jobs        = v1alpha1.GroupVersion.WithResource("volumehealjobs")
)

// Client is for an API of which each answer is decoded into the type that the caller names.
type Client struct {
	dynamic.Interface

	// Metadata reads that of objects, and no more.
	Metadata metadata.Interface
}

// New returns a client, which asks nothing yet.
func New(cfg *rest.Config) (Client, error) {
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return Client{}, err
	}
	only, err := metadata.NewForConfig(cfg)
	return Client{objects, only}, err
}

// Get returns an object.
func Get[T any](ctx context.Context, c Client, of schema.GroupVersionResource, namespace, name string) (*T, error) {
	raw, err := c.Resource(of).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return decode[T](raw)
}

// Create makes an object, and returns it as the API has it.
func Create[T any](ctx context.Context, c Client, of schema.GroupVersionResource, namespace string, object *T) (*T, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	raw, err := c.Resource(of).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return decode[T](raw)
}

// Each calls visit for all objects of a kind that a field selector fits.
func Each[T any](ctx context.Context, c Client, of schema.GroupVersionResource, namespace, fields string, visit func(*T)) error {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.Resource(of).Namespace(namespace).List(ctx, o)
	}
	return pager.New(list).EachListItem(ctx, metav1.ListOptions{FieldSelector: fields}, func(raw runtime.Object) error {
		object, err := decode[T](raw.(*unstructured.Unstructured))
		if err == nil {
			visit(object)
		}
		return err
	})
}

// EachMetadata is Each for what an object's metadata tells.
func EachMetadata(ctx context.Context, c Client, of schema.GroupVersionResource, namespace, fields string, visit func(*metav1.PartialObjectMetadata)) error {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.Metadata.Resource(of).Namespace(namespace).List(ctx, o)
	}
	return pager.New(list).EachListItem(ctx, metav1.ListOptions{FieldSelector: fields}, func(object runtime.Object) error {
		visit(object.(*metav1.PartialObjectMetadata))
		return nil
	})
}

func decode[T any](raw *unstructured.Unstructured) (*T, error) {
	object := new(T)
	return object, runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, object)
}

// UnknownKind reports whether an error says that the cluster does not have a kind at all.
func UnknownKind(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
