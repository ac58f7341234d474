package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	dir       = "../../deploy/chart"
	namespace = "csi-addons-node-healer"
)

type values = map[string]any

// objects are decoded manifests by kind and name.
type objects map[string]values

// The default is the default of deploy/, and monitoring adds what its directories have.
// The namespace is missing: a release is kept in it, so it is there before.
func TestChartRendersWhatKustomizeBuilds(t *testing.T) {
	for name, test := range map[string]struct {
		values         values
		kustomizations []string
	}{
		"default": {nil, []string{"."}},
		"node condition": {
			values{"gateway": values{"nodeCondition": true}}, []string{overlay(t, "gateway/node-condition")},
		},
		"no gateway": {values{"gateway": values{"enabled": false}}, []string{"daemonset"}},
		"deploy/default": {
			values{"controller": values{"enabled": true}, "monitoring": values{"enabled": true}},
			[]string{"default"},
		},
		"everything": {
			values{"controller": values{"enabled": true}, "monitoring": values{"enabled": true, "operator": true}},
			[]string{"default", "monitoring/operator"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := objects{}
			for _, k := range test.kustomizations {
				want.add(t, build(t, k))
			}
			delete(want, "Namespace/"+namespace)
			same(t, mustRender(t, test.values), want)
		})
	}
}

// What is packaged has to be whole: the chart's files are links to the manifests.
func TestPackageHoldsTheManifests(t *testing.T) {
	archive, err := chartutil.Save(load(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	packaged, err := loader.Load(archive)
	if err != nil {
		t.Fatal(err)
	}
	all := values{"monitoring": values{"enabled": true, "operator": true}}
	got, err := renderChart(t, packaged, namespace, all)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, mustRender(t, all))
}

func TestLint(t *testing.T) {
	for _, m := range lint.All(dir, nil, namespace, true).Messages {
		// There is no icon.
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// kustomize names the namespace in manifests that the chart has to give another one.
func TestEveryObjectFollowsTheReleaseNamespace(t *testing.T) {
	got, err := renderChart(t, load(t), "elsewhere", values{"monitoring": values{"enabled": true, "operator": true}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), namespace) {
		t.Errorf("a manifest still names the namespace %s", namespace)
	}
	if !strings.Contains(string(text), "system:serviceaccount:elsewhere:node-healer-gateway") {
		t.Error("the admission policy names another account")
	}
}

func load(t *testing.T) *helmchart.Chart {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustRender(t *testing.T, v values) objects {
	t.Helper()
	got, err := render(t, v)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func render(t *testing.T, v values) (objects, error) {
	t.Helper()
	return renderChart(t, load(t), namespace, v)
}

// renderChart is `helm template`.
func renderChart(t *testing.T, c *helmchart.Chart, in string, v values) (objects, error) {
	t.Helper()
	install := action.NewInstall(&action.Configuration{})
	install.DryRun, install.ClientOnly = true, true
	install.ReleaseName, install.Namespace = "node-healer", in
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.32.0", Major: "1", Minor: "32"}
	made, err := install.Run(c, v)
	if err != nil {
		return nil, err
	}
	got := objects{}
	got.add(t, made.Manifest)
	return got, nil
}

// overlay makes a kustomization of deploy with one of its components, and returns its path from
// deploy.
func overlay(t *testing.T, component string) string {
	t.Helper()
	deploy, err := filepath.Abs("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	made := t.TempDir()
	from, err := filepath.Rel(made, deploy)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\n", from, filepath.Join(from, component))
	if err := os.WriteFile(filepath.Join(made, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	to, err := filepath.Rel(deploy, made)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// build is `kustomize build` of a directory beneath deploy.
func build(t *testing.T, kustomization string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../deploy", kustomization))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(path, "kustomization.yaml")); err != nil {
		t.Fatal(err)
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// add decodes manifests. None may come twice.
func (o objects) add(t *testing.T, manifests string) {
	t.Helper()
	for _, text := range releaseutil.SplitManifests(manifests) {
		var object values
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		metadata, _ := object["metadata"].(values)
		kind, _ := object["kind"].(string)
		name, _ := metadata["name"].(string)
		if kind == "" || name == "" {
			t.Fatalf("no object:\n%s", text)
		}
		key := kind + "/" + name
		if _, ok := o[key]; ok {
			t.Fatalf("%s comes twice", key)
		}
		o[key] = object
	}
}

func same(t *testing.T, got, want objects) {
	t.Helper()
	for key := range want {
		if !reflect.DeepEqual(got[key], want[key]) {
			t.Errorf("%s\ngot  %v\nwant %v", key, got[key], want[key])
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			t.Errorf("%s is rendered, and not built", key)
		}
	}
}
