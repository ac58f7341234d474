package cluster

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/test/harness"
)

// cosiGroup is the API group of COSI.
const cosiGroup = "objectstorage.k8s.io"

// cosiKinds are COSI's kinds that are no classes, with their plurals and scopes.
var cosiKinds = map[string]struct{ plural, scope string }{
	"Bucket":       {"buckets", "Cluster"},
	"BucketClaim":  {"bucketclaims", "Namespaced"},
	"BucketAccess": {"bucketaccesses", "Namespaced"},
}

// InstallCOSI brings COSI's kinds in a version, with whatever fields, until the test ends.
func (c *Cluster) InstallCOSI(tb testing.TB, version string) {
	tb.Helper()
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for kind, of := range cosiKinds {
		name := of.plural + "." + cosiGroup
		_, err := c.dynamic.Resource(definitions).Create(tb.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": name, "annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, a test's"}},
			"spec": map[string]any{
				"group": cosiGroup, "scope": of.scope, "names": map[string]any{"kind": kind, "plural": of.plural, "singular": strings.ToLower(kind)},
				"versions": []any{map[string]any{
					"name": version, "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
				}},
			},
		}}, metav1.CreateOptions{})
		harness.Must(tb, err)
		tb.Cleanup(func() { c.Kubectl(tb, "delete", "crd", name) })
		c.Kubectl(tb, "wait", "--for=condition=Established", "--timeout=5m", "crd/"+name)
	}
}

// CreateCOSI creates an object of COSI's, in a namespace if its kind has any. It goes with
// the kinds.
func (c *Cluster) CreateCOSI(tb testing.TB, version, kind, namespace string, object map[string]any) {
	tb.Helper()
	object["apiVersion"], object["kind"] = cosiGroup+"/"+version, kind
	name := object["metadata"].(map[string]any)["name"].(string)
	if cosiKinds[kind].scope == "Cluster" {
		namespace = ""
	}
	of := c.dynamic.Resource(schema.GroupVersionResource{Group: cosiGroup, Version: version, Resource: cosiKinds[kind].plural}).Namespace(namespace)
	harness.Eventually(tb, "the API has "+kind, func() bool {
		_, err := of.Create(tb.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
		return err == nil
	})
	tb.Cleanup(func() {
		c.Kubectl(tb, "patch", cosiKinds[kind].plural+"."+cosiGroup, name, "--type=merge", "--namespace="+namespace, "--patch", `{"metadata":{"finalizers":null}}`)
	})
}
