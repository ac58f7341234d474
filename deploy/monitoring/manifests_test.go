// Package monitoring holds no code: its test reads the manifests next to it. What
// Prometheus thinks of the rules and the dashboard is in test/monitoring.
package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// read decodes a manifest; an unknown or doubled field fails the test.
func read[T any](t *testing.T, file string) (object T) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return object
}

// TestKustomizationsListEveryFile leaves out what Prometheus's own configuration takes.
func TestKustomizationsListEveryFile(t *testing.T) {
	for _, dir := range []string{".", "operator"} {
		k := read[struct {
			APIVersion, Kind, Namespace string
			Resources                   []string
			GeneratorOptions            map[string]any
			ConfigMapGenerator          []struct {
				Name    string
				Files   []string
				Options map[string]any
			}
		}](t, filepath.Join(dir, "kustomization.yaml"))
		listed := map[string]bool{"kustomization.yaml": true, "scrape.yaml": dir == "."}
		for _, file := range k.Resources {
			listed[file] = true
		}
		for _, made := range k.ConfigMapGenerator {
			for _, file := range made.Files {
				_, source, _ := strings.Cut(file, "=")
				listed[source] = true
			}
		}
		maps.DeleteFunc(listed, func(_ string, is bool) bool { return !is })
		files, err := filepath.Glob(filepath.Join(dir, "*.[yj]*"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range files {
			files[i] = filepath.Base(files[i])
		}
		if want := slices.Sorted(maps.Keys(listed)); !slices.Equal(want, slices.Sorted(slices.Values(files))) {
			t.Errorf("%s: the kustomization has %v, the files are %v", dir, want, files)
		}
		if k.Namespace != gateway(t).Namespace {
			t.Errorf("%s is in namespace %s", dir, k.Namespace)
		}
	}
}

func gateway(t *testing.T) appsv1.DaemonSet {
	t.Helper()
	return read[appsv1.DaemonSet](t, "../gateway/daemonset.yaml")
}

// TestOperatorGetsTheSameRules compares the rules of the PrometheusRule with the file.
func TestOperatorGetsTheSameRules(t *testing.T) {
	plain := read[struct{ Groups []any }](t, "rules.yaml")
	rule := read[struct {
		APIVersion, Kind string
		Metadata         any
		Spec             struct{ Groups []any }
	}](t, "operator/prometheusrule.yaml")
	if len(plain.Groups) == 0 || !reflect.DeepEqual(plain.Groups, rule.Spec.Groups) {
		t.Error("operator/prometheusrule.yaml does not have the groups of rules.yaml")
	}
}

// TestPrometheusFindsTheGateways compares both ways of finding them with the gateway.
func TestPrometheusFindsTheGateways(t *testing.T) {
	pod := gateway(t).Spec.Template
	monitor := read[struct {
		APIVersion, Kind string
		Metadata         any
		Spec             struct {
			Selector            struct{ MatchLabels map[string]string }
			PodMetricsEndpoints []struct {
				Port, Scheme, Path, Interval string
				Authorization                struct{ Credentials struct{ Name, Key string } }
				TLSConfig                    map[string]bool
				Relabelings                  []map[string]any
			}
		}
	}](t, "operator/podmonitor.yaml").Spec
	for key, value := range monitor.Selector.MatchLabels {
		if pod.Labels[key] != value {
			t.Errorf("the PodMonitor selects %s=%s", key, value)
		}
	}
	endpoint := monitor.PodMetricsEndpoints[0]
	named := func(p corev1.ContainerPort) bool { return p.Name == endpoint.Port }
	if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, named) {
		t.Errorf("the gateway has no port %q", endpoint.Port)
	}
	job, err := os.ReadFile("scrape.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if want := "regex: " + pod.Labels["app.kubernetes.io/name"] + ";" + endpoint.Port + "\n"; !strings.Contains(string(job), want) {
		t.Errorf("scrape.yaml does not have %q", want)
	}
	if endpoint.Authorization.Credentials.Name != account(t).Name {
		t.Errorf("the PodMonitor takes the token of %v", endpoint.Authorization)
	}
}

// account returns the Secret with the token of operator/account.yaml.
func account(t *testing.T) (secret corev1.Secret) {
	t.Helper()
	text, err := os.ReadFile("operator/account.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(string(text), "\n---\n")
	var owner corev1.ServiceAccount
	var binding rbacv1.ClusterRoleBinding
	for i, into := range []any{&owner, &secret, &binding} {
		if err := yaml.UnmarshalStrict([]byte(documents[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	if len(documents) != 3 || secret.Annotations[corev1.ServiceAccountNameKey] != owner.Name || binding.Subjects[0].Name != owner.Name ||
		secret.Type != corev1.SecretTypeServiceAccountToken || owner.Namespace != gateway(t).Namespace {
		t.Errorf("the token is another account's: %+v %+v", secret, binding)
	}
	return secret
}

// TestEachStatusHasItsAlert: what keeps pods from working pages, all else warns.
func TestEachStatusHasItsAlert(t *testing.T) {
	rules, err := os.ReadFile("rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, matcher := range regexp.MustCompile(`node_healer_volumes\{status=~"([^"]*)"\}`).FindAllSubmatch(rules, -1) {
		got = append(got, string(matcher[1]))
	}
	pages := fmt.Sprintf("%s|%s", healer.Inaccessible, healer.DataLoss)
	warns := fmt.Sprintf("%s|%s", healer.Degraded, healer.Unknown)
	slices.Sort(got)
	if !slices.Equal(slices.Compact(got), []string{warns, pages}) {
		t.Errorf("the alerts are about %q, want %q and %q", got, warns, pages)
	}
}

// TestDashboardIsJSON is for those who change it without Prometheus at hand.
func TestDashboardIsJSON(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	if err != nil || !json.Valid(text) {
		t.Errorf("dashboard.json: %v", err)
	}
}
