package chart

import (
	"io"
	"log"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/release"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

const (
	name              = "node-healer"
	namespaceManifest = "deploy/daemonset/namespace.yaml"
)

func TestMain(m *testing.M) {
	// Helm logs each link in the chart, each time that it is loaded.
	log.SetOutput(io.Discard)
	harness.Main(m, harness.Nothing, cluster.Stop)
}

// A release is installed, upgraded, rolled back and uninstalled as docs/operations.md
// says. There is no kubelet, so no pod starts; the API decides on every object.
func TestReleaseInAnAPI(t *testing.T) {
	c := cluster.Start(t)
	c.Apply(t, namespaceManifest)
	helm := configure(t, c)

	install := action.NewInstall(helm)
	install.ReleaseName, install.Namespace = name, namespace
	with := values{"monitoring": values{"enabled": true}}
	older := loadForAPI(t) // without a value that the next release brings, and requires
	older.Schema = nil
	delete(older.Values["gateway"].(values), "nodeCondition")
	made, err := install.Run(older, with)
	harness.Must(t, err)
	installed := refer(t, made)
	if out := c.Kubectl(t, append([]string{"get", "--output=name", "--namespace=" + namespace}, installed...)...); len(strings.Fields(out)) != len(installed) {
		t.Fatalf("of %v there are\n%s", installed, out)
	}
	mode(t, c, "heal")

	upgrade := action.NewUpgrade(helm)
	upgrade.Namespace, upgrade.ResetThenReuseValues = namespace, true
	upgraded, err := upgrade.Run(name, loadForAPI(t), parse(t, "settings.mode=check,gateway.enabled=false"))
	harness.Must(t, err)
	mode(t, c, "check")
	if out := c.Kubectl(t, "get", "daemonsets", "-n", namespace, "--output=name"); out != "daemonset.apps/node-healer\n" {
		t.Errorf("after an upgrade without the gateway there are\n%s", out)
	}
	if len(refer(t, upgraded)) >= len(installed) {
		t.Error("the upgrade kept the gateway's objects")
	}

	harness.Must(t, action.NewRollback(helm).Run(name))
	mode(t, c, "heal")

	_, err = action.NewUninstall(helm).Run(name)
	harness.Must(t, err)
	for _, object := range installed {
		harness.Eventually(t, object+" is gone", func() bool {
			return c.Kubectl(t, "get", "--ignore-not-found", "-n", namespace, object) == ""
		})
	}
	if out := c.Kubectl(t, "get", "secrets", "-n", namespace, "--output=name"); out != "" {
		t.Errorf("uninstalling leaves %s", out)
	}
}

// loadForAPI loads the chart without the version that it asks for: the tests' API is
// built from its Go module, and does not know its own.
func loadForAPI(t *testing.T) *chart.Chart {
	t.Helper()
	loaded := load(t)
	loaded.Metadata.KubeVersion = ""
	return loaded
}

// configure gives Helm's actions the API of the test, with nothing of the user's.
func configure(t *testing.T, c *cluster.Cluster) *action.Configuration {
	t.Helper()
	flags := kube.GetConfig(c.AdminKubeconfig(), "", namespace)
	cache := t.TempDir()
	flags.CacheDir = &cache
	helm := &action.Configuration{}
	harness.Must(t, helm.Init(flags, namespace, "secret", t.Logf))
	return helm
}

// refer names what a release holds as kubectl does.
func refer(t *testing.T, r *release.Release) []string {
	t.Helper()
	all := objects{}
	all.add(t, r.Manifest)
	var refs []string
	for key := range all {
		refs = append(refs, key)
	}
	return refs
}

func mode(t *testing.T, c *cluster.Cluster, want string) {
	t.Helper()
	if got := c.Kubectl(t, "get", "configmap", name, "-n", namespace, "--output=jsonpath={.data.mode}"); got != want {
		t.Errorf("the mode is %q, not %s", got, want)
	}
}
