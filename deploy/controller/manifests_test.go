// Package controller holds no code: its test reads the manifests next to it.
package controller

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// read decodes the documents of a manifest; an unknown or doubled field fails the test.
func read[T any](t *testing.T, file string) (objects []T) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var object T
		if err := yaml.Unmarshal([]byte(document), &object, yaml.DisallowUnknownFields); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects = append(objects, object)
	}
	return objects
}

func deployment(t *testing.T) appsv1.Deployment {
	t.Helper()
	return read[appsv1.Deployment](t, "deployment.yaml")[0]
}

func TestKustomizationListsEveryFile(t *testing.T) {
	k := read[struct {
		APIVersion, Kind, Namespace string
		Resources                   []string
		Images                      []struct{ Name, NewTag string }
	}](t, "kustomization.yaml")[0]
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return f == "kustomization.yaml" })
	if have := slices.Sorted(slices.Values(k.Resources)); !slices.Equal(have, files) {
		t.Errorf("lists %v, the files are %v", have, files)
	}
	d := deployment(t)
	if image := d.Spec.Template.Spec.Containers[0].Image; len(k.Images) != 1 || k.Images[0].Name != image || k.Images[0].NewTag == "latest" {
		t.Errorf("pins %v for %s", k.Images, image)
	}
	if k.Namespace != d.Namespace {
		t.Errorf("is in namespace %s", k.Namespace)
	}
}

func TestNoPrivileges(t *testing.T) {
	pod := deployment(t).Spec.Template.Spec
	if pod.HostPID || pod.HostNetwork || pod.HostIPC || len(pod.Containers) != 1 || len(pod.InitContainers) > 0 {
		t.Errorf("shares with the host: %+v", pod)
	}
	sc := pod.SecurityContext
	if sc == nil || sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot || sc.RunAsUser == nil || *sc.RunAsUser < 60000 ||
		sc.SeccompProfile == nil || sc.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("runs as %+v", sc)
	}
	c := pod.Containers[0].SecurityContext
	if c == nil || c.Privileged != nil || c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation ||
		c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem ||
		c.Capabilities == nil || len(c.Capabilities.Add) > 0 || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("the container may %+v", c)
	}
}

// TestNothingIsMounted but the token for the API, which the others are made with.
func TestNothingIsMounted(t *testing.T) {
	if pod := deployment(t).Spec.Template.Spec; len(pod.Volumes) > 0 || pod.AutomountServiceAccountToken == nil || !*pod.AutomountServiceAccountToken {
		t.Errorf("the volumes are %+v", pod.Volumes)
	}
}

// TestPoliciesAreForTheAccount compares the policies with the account.
func TestPoliciesAreForTheAccount(t *testing.T) {
	policy, err := os.ReadFile("admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	account := `== "system:serviceaccount:` + deployment(t).Namespace + ":" + deployment(t).Spec.Template.Spec.ServiceAccountName + `"`
	if n := strings.Count(string(policy), account); n != 3 {
		t.Errorf("%d policies are for the account, want 3", n)
	}
}

// TestLedgerIsShippedEmpty: data in the manifest would replace what was evicted.
func TestLedgerIsShippedEmpty(t *testing.T) {
	kept := read[corev1.ConfigMap](t, "ledger.yaml")[0]
	if kept.Name != "node-healer-evictions" || kept.Namespace != deployment(t).Namespace || kept.Data != nil || kept.BinaryData != nil {
		t.Errorf("got %+v", kept)
	}
}

// TestTokensAreForGatewaysOnly compares the policy with the account, and with what the
// controller asks for.
func TestTokensAreForGatewaysOnly(t *testing.T) {
	account := deployment(t).Spec.Template.Spec.ServiceAccountName
	policy, err := os.ReadFile("admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`== "system:serviceaccount:` + deployment(t).Namespace + ":" + account + `"`,
		`.startsWith("` + registration.AudiencePrefix + `")`,
	} {
		if !strings.Contains(string(policy), want) {
			t.Errorf("the policy lacks %s", want)
		}
	}
}

func TestFlagsAreKnown(t *testing.T) {
	page, err := os.ReadFile("../../docs/flags.md") // which is made from them
	if err != nil {
		t.Fatal(err)
	}
	_, flags, found := strings.Cut(string(page), "\n## node-healer-controller\n")
	if !found {
		t.Fatal("docs/flags.md has no flags of the controller")
	}
	c := deployment(t).Spec.Template.Spec.Containers[0]
	for _, arg := range c.Args {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !regexp.MustCompile("(?m)^- `--?" + name + "`[ :]").MatchString(flags) {
			t.Errorf("no such flag: %s", name)
		}
		for _, match := range regexp.MustCompile(`\$\((\w+)\)`).FindAllStringSubmatch(arg, -1) {
			if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == match[1] }) {
				t.Errorf("%s: %s is not set", arg, match[1])
			}
		}
	}
}

// TestLabelsAreSelected by the budget, and by the gateways' NetworkPolicy.
func TestLabelsAreSelected(t *testing.T) {
	labels := deployment(t).Spec.Template.Labels
	for key, value := range read[policyv1.PodDisruptionBudget](t, "poddisruptionbudget.yaml")[0].Spec.Selector.MatchLabels {
		if labels[key] != value {
			t.Errorf("the budget selects %s=%s", key, value)
		}
	}
	from := read[networkingv1.NetworkPolicy](t, "../gateway/networkpolicy.yaml")[0].Spec.Ingress[0].From
	if !slices.ContainsFunc(from, func(p networkingv1.NetworkPolicyPeer) bool {
		return p.PodSelector != nil && len(p.PodSelector.MatchLabels) == 1 && labels["app.kubernetes.io/name"] == p.PodSelector.MatchLabels["app.kubernetes.io/name"]
	}) {
		t.Errorf("the gateways' NetworkPolicy lets through %+v", from)
	}
}

// TestRights limits the roles to what the controller needs: it reads no secrets, writes to
// nothing but jobs, events, its lease and, for evictions, their ledger and taints, evicts
// pods, and makes tokens of its own account only.
func TestRights(t *testing.T) {
	var all []string
	for _, role := range read[struct {
		rbacv1.Role `json:",inline"`
		RoleRef     any
		Subjects    any
	}](t, "rbac.yaml") {
		for _, rule := range role.Rules {
			all = append(all, strings.TrimSpace(role.Kind+" "+strings.Join(rule.Verbs, ",")+" "+strings.Join(rule.Resources, ",")+" "+strings.Join(rule.ResourceNames, ",")))
		}
	}
	want := []string{
		"ClusterRole get,list,watch,delete volumehealjobs",
		"ClusterRole create volumehealjobs",
		"ClusterRole patch volumehealjobs/status",
		"ClusterRole get persistentvolumeclaims,persistentvolumes,nodes",
		"ClusterRole get,list pods",
		"ClusterRole list persistentvolumeclaims,persistentvolumes,nodes",
		"ClusterRole get namespaces",
		"ClusterRole get storageclasses,csidrivers",
		"ClusterRole get daemonsets",
		"ClusterRole list networkfences",
		"ClusterRole list poddisruptionbudgets",
		"ClusterRole create pods/eviction",
		"ClusterRole patch nodes",
		"ClusterRole create,patch events",
		"ClusterRole create tokenreviews",
		"ClusterRole create subjectaccessreviews",
		"Role get csiaddonsnodes",
		"Role get pods",
		"Role create serviceaccounts/token node-healer-controller",
		"Role create leases",
		"Role get,update leases node-healer-controller",
		"Role create,patch events",
		"Role get configmaps node-healer,node-healer-evictions",
		"Role update configmaps node-healer-evictions",
	}
	if !slices.Equal(all, want) {
		t.Errorf("got %q", all)
	}
	if automount := read[corev1.ServiceAccount](t, "serviceaccount.yaml")[0].AutomountServiceAccountToken; automount == nil || *automount {
		t.Error("every pod of the account mounts a token")
	}
}
