package cluster

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"

	"github.com/csi-addons/node-healer/test/harness"
)

// Object is a pointer to an object of the API, such as *corev1.Pod.
type Object interface {
	metav1.Object
	runtime.Object
}

// Create makes an object, its status included, as the controller that owns it in a real
// cluster would. The test's end removes it.
func Create[T Object](tb testing.TB, c *Cluster, object T) T {
	tb.Helper()
	kind, raw := c.kind(tb, object), encode(tb, object)
	made, err := kind.Create(tb.Context(), raw, metav1.CreateOptions{})
	harness.Must(tb, err)
	object = decode[T](tb, made)
	tb.Cleanup(func() { Delete(tb, c, object) })
	if status, ok := raw.Object["status"].(map[string]any); ok && len(status) > 0 {
		made.Object["status"] = status
		made, err = kind.UpdateStatus(tb.Context(), made, metav1.UpdateOptions{})
		harness.Must(tb, err)
	}
	return decode[T](tb, made)
}

// Change changes an object as it is now, its status included.
func Change[T Object](tb testing.TB, c *Cluster, object T, change func(T)) T {
	tb.Helper()
	kind := c.kind(tb, object)
	var changed *unstructured.Unstructured
	harness.Must(tb, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := kind.Get(tb.Context(), object.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		goal := decode[T](tb, now)
		change(goal)
		raw := encode(tb, goal)
		status, ok := raw.Object["status"].(map[string]any)
		if changed, err = kind.Update(tb.Context(), raw, metav1.UpdateOptions{}); err != nil || !ok || len(status) == 0 {
			return err
		}
		changed.Object["status"] = status
		changed, err = kind.UpdateStatus(tb.Context(), changed, metav1.UpdateOptions{})
		return err
	}))
	return decode[T](tb, changed)
}

// Terminate deletes an object as `kubectl delete` does. A pod on a node, and
// whatever has a finalizer, goes on to exist, terminating.
func Terminate[T Object](tb testing.TB, c *Cluster, object T) T {
	tb.Helper()
	kind := c.kind(tb, object)
	harness.Must(tb, kind.Delete(tb.Context(), object.GetName(), metav1.DeleteOptions{}))
	now, err := kind.Get(tb.Context(), object.GetName(), metav1.GetOptions{})
	harness.Must(tb, err)
	return decode[T](tb, now)
}

// Delete removes an object for good and at once, if it is there: without grace,
// and any controller with a finalizer on it.
func Delete[T Object](tb testing.TB, c *Cluster, object T) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel() // tb.Context() has ended where a test's end deletes
	kind, none := c.kind(tb, object), int64(0)
	err := kind.Delete(ctx, object.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &none})
	if err == nil {
		free := []byte(`{"metadata":{"finalizers":null}}`)
		_, err = kind.Patch(ctx, object.GetName(), types.MergePatchType, free, metav1.PatchOptions{})
	}
	if !apierrors.IsNotFound(err) {
		harness.Must(tb, err)
	}
}

// kind is where objects of that kind are.
func (c *Cluster) kind(tb testing.TB, object Object) dynamic.ResourceInterface {
	tb.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	harness.Must(tb, err)
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	if namespace := object.GetNamespace(); namespace != "" {
		return c.dynamic.Resource(resource).Namespace(namespace)
	}
	return c.dynamic.Resource(resource)
}

func encode(tb testing.TB, object Object) *unstructured.Unstructured {
	tb.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	harness.Must(tb, err)
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	harness.Must(tb, err)
	raw := &unstructured.Unstructured{Object: content}
	raw.SetGroupVersionKind(kinds[0])
	return raw
}

func decode[T Object](tb testing.TB, raw *unstructured.Unstructured) T {
	tb.Helper()
	fresh, err := scheme.Scheme.New(raw.GroupVersionKind())
	harness.Must(tb, err)
	harness.Must(tb, runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, fresh))
	return fresh.(T)
}
