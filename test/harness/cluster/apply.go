package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/restmapper"

	"github.com/csi-addons/node-healer/test/harness"
)

// applied is one object of manifests.
type applied struct {
	object  *unstructured.Unstructured
	mapping *meta.RESTMapping
}

// Apply applies manifests, a file or a directory for kustomize, whose path is
// relative to the module: Apply(t, "deploy"). They stay when the test
// ends, because a namespace that is deleted is never gone here; applying them
// again undoes what a test changed in them, and removes nothing. The first time kubectl
// does it, as users do, and later a client that asks the API for nothing else.
func (c *Cluster) Apply(tb testing.TB, manifests string) {
	tb.Helper()
	for _, a := range c.applied[manifests] {
		_, err := c.dynamic.Resource(a.mapping.Resource).Namespace(a.object.GetNamespace()).
			Apply(context.Background(), a.object.GetName(), a.object.DeepCopy(), metav1.ApplyOptions{FieldManager: "kubectl", Force: true})
		harness.Must(tb, err)
	}
	if c.applied[manifests] != nil {
		return
	}
	path, how := filepath.Join(harness.ModuleRoot(tb), manifests), "--filename="
	text := ""
	if _, err := os.Stat(filepath.Join(path, "kustomization.yaml")); err == nil {
		how = "--kustomize="
		text = c.Kubectl(tb, "kustomize", path)
	} else {
		raw, err := os.ReadFile(path)
		harness.Must(tb, err)
		text = string(raw)
	}
	c.Kubectl(tb, "apply", "--server-side", "--force-conflicts", how+path)
	if c.applied == nil {
		c.applied = map[string][]applied{}
	}
	c.applied[manifests] = c.decode(tb, text)
}

// decode reads the objects of manifests, whose kinds the API knows by now.
func (c *Cluster) decode(tb testing.TB, text string) (all []applied) {
	tb.Helper()
	groups, err := restmapper.GetAPIGroupResources(c.admin.Discovery())
	harness.Must(tb, err)
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			tb.Fatal(err)
		}
		if o.Object == nil {
			continue
		}
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		harness.Must(tb, err)
		if mapping.Scope.Name() == meta.RESTScopeNameRoot {
			o.SetNamespace("") // kustomize gives one to kinds that it does not know
		}
		all = append(all, applied{o, mapping})
	}
}
