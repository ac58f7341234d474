// Package gateway holds no code: its test reads the manifests next to it.
package gateway

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
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

func podOf(t *testing.T, file string) corev1.PodSpec {
	t.Helper()
	return read[appsv1.DaemonSet](t, file).Spec.Template.Spec
}

// arguments are the one container's, by flag name.
func arguments(t *testing.T, file string) map[string]string {
	t.Helper()
	args := map[string]string{}
	for _, arg := range podOf(t, file).Containers[0].Args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		args[name] = value
	}
	return args
}

const (
	own    = "daemonset.yaml"
	server = "../daemonset/daemonset.yaml"
)

func TestKustomizationListsEveryFile(t *testing.T) {
	k := read[struct {
		APIVersion, Kind, Namespace string
		Resources                   []string
		Images                      []struct{ Name, NewTag string }
	}](t, "kustomization.yaml")
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return f == "kustomization.yaml" })
	if have := slices.Sorted(slices.Values(k.Resources)); !slices.Equal(have, files) {
		t.Errorf("lists %v, the files are %v", have, files)
	}
	if image := podOf(t, own).Containers[0].Image; len(k.Images) != 1 || k.Images[0].Name != image || k.Images[0].NewTag == "" || k.Images[0].NewTag == "latest" {
		t.Errorf("pins %v for %s", k.Images, image)
	}
	if k.Namespace != read[appsv1.DaemonSet](t, server).Namespace {
		t.Errorf("is in namespace %s", k.Namespace)
	}
}

// TestNoPrivileges: a gateway that was taken over has no privileges on the node.
func TestNoPrivileges(t *testing.T) {
	pod := podOf(t, own)
	if pod.HostPID || pod.HostNetwork || pod.HostIPC || len(pod.Containers) != 1 || len(pod.InitContainers) > 0 {
		t.Errorf("shares with the host: %+v", pod)
	}
	sc := pod.SecurityContext
	if sc == nil || sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot || sc.RunAsUser == nil || *sc.RunAsUser < 60000 || sc.RunAsGroup == nil || *sc.RunAsGroup != *sc.RunAsUser {
		t.Errorf("runs as %+v", sc)
	}
	if sc == nil || sc.SeccompProfile == nil || sc.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("has no seccomp profile")
	}
	c := pod.Containers[0].SecurityContext
	if c == nil || c.Privileged != nil || c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation ||
		c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem ||
		c.Capabilities == nil || len(c.Capabilities.Add) > 0 || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("the container may %+v", c)
	}
	if len(pod.Volumes) != 1 || pod.Volumes[0].HostPath == nil || !pod.Containers[0].VolumeMounts[0].ReadOnly {
		t.Errorf("has the volumes %+v", pod.Volumes)
	}
	limits := pod.Containers[0].Resources.Limits
	if limits.Cpu().IsZero() || limits.Memory().IsZero() {
		t.Error("is not bounded")
	}
}

// TestServerKnowsTheGateway compares the two DaemonSets.
func TestServerKnowsTheGateway(t *testing.T) {
	theirs, ours := arguments(t, server), arguments(t, own)
	if got, want := theirs["gateway-uid"], strconv.FormatInt(*podOf(t, own).SecurityContext.RunAsUser, 10); got != want {
		t.Errorf("the server expects uid %s, the gateway has %s", got, want)
	}
	if theirs["metrics-socket"] == "" || theirs["metrics-socket"] != ours["metrics-server"] {
		t.Errorf("the server serves metrics at %s, the gateway asks %s", theirs["metrics-socket"], ours["metrics-server"])
	}
	if theirs["gateway-socket"] == "" || theirs["gateway-socket"] != ours["server"] {
		t.Errorf("the server serves %s, the gateway calls %s", theirs["gateway-socket"], ours["server"])
	}
	dir := filepath.Dir(strings.TrimPrefix(ours["server"], "unix://"))
	volume := podOf(t, own).Volumes[0].HostPath
	if mount := podOf(t, own).Containers[0].VolumeMounts[0]; mount.MountPath != dir || volume.Path != dir {
		t.Errorf("%s of the host is at %s", volume.Path, mount.MountPath)
	}
	if a, b := podOf(t, own), podOf(t, server); a.PriorityClassName != b.PriorityClassName || !slices.Equal(a.Tolerations, b.Tolerations) {
		t.Error("they are not on the same nodes")
	}
}

// The controller and Prometheus each find their port, and the NetworkPolicy lets them.
func TestPortsAreFound(t *testing.T) {
	ports := podOf(t, own).Containers[0].Ports
	flags := []string{"endpoint", "metrics-endpoint"}
	if len(ports) != len(flags) {
		t.Fatalf("the container has the ports %v", ports)
	}
	for i, name := range flags {
		_, port, _ := strings.Cut(strings.TrimPrefix(arguments(t, own)[name], "tcp://"), ":")
		if strconv.Itoa(int(ports[i].ContainerPort)) != port {
			t.Errorf("--%s is port %q, the container has %v", name, port, ports)
		}
	}
	policy := read[networkingv1.NetworkPolicy](t, "networkpolicy.yaml").Spec
	for key, value := range policy.PodSelector.MatchLabels {
		if read[appsv1.DaemonSet](t, own).Spec.Template.Labels[key] != value {
			t.Errorf("the NetworkPolicy selects %s=%s", key, value)
		}
	}
	if len(policy.Ingress) != len(ports) {
		t.Fatalf("the NetworkPolicy lets through %+v", policy.Ingress)
	}
	for i, in := range policy.Ingress {
		if len(in.Ports) != 1 || in.Ports[0].Port.String() != ports[i].Name {
			t.Errorf("the NetworkPolicy lets through %+v", in)
		}
	}
}

func TestFlagsAreKnown(t *testing.T) {
	run := exec.Command("go", "run", "-buildvcs=false", "-tags=grpcnotrace", "github.com/csi-addons/node-healer/cmd/node-healer-gateway", "--help")
	run.Env = append(os.Environ(), "CGO_ENABLED=0")
	help, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	for name := range arguments(t, own) {
		if !regexp.MustCompile(`(?m)^  -` + name + `\b`).Match(help) {
			t.Errorf("no such flag: %s", name)
		}
	}
	c := podOf(t, own).Containers[0]
	for _, arg := range c.Args {
		for _, match := range regexp.MustCompile(`\$\((\w+)\)`).FindAllStringSubmatch(arg, -1) {
			if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == match[1] }) {
				t.Errorf("%s: %s is not set", arg, match[1])
			}
		}
	}
}

// TestAsksForNoMore limits the roles to what the gateway needs, and what --node-condition does.
func TestAsksForNoMore(t *testing.T) {
	for file, want := range map[string][]string{
		"rbac.yaml":                {"ClusterRole create tokenreviews", "ClusterRole create subjectaccessreviews", "Role get,create,patch csiaddonsnodes"},
		"node-condition/rbac.yaml": {"ClusterRole get nodes", "ClusterRole patch nodes/status"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, document := range strings.Split(string(text), "\n---\n") {
			var role rbacv1.Role
			if err := yaml.Unmarshal([]byte(document), &role); err != nil {
				t.Fatal(err)
			}
			for _, rule := range role.Rules {
				all = append(all, role.Kind+" "+strings.Join(rule.Verbs, ",")+" "+strings.Join(rule.Resources, ","))
			}
		}
		if !slices.Equal(all, want) {
			t.Errorf("%s: %q", file, all)
		}
	}
	if automount := read[corev1.ServiceAccount](t, "serviceaccount.yaml").AutomountServiceAccountToken; automount == nil || *automount {
		t.Error("every pod of the account mounts a token")
	}
}

// TestNothingElseOfAStatusIsWritten: the policy compares all that a Node's status has but the
// conditions, also what a later Kubernetes adds.
func TestNothingElseOfAStatusIsWritten(t *testing.T) {
	text, err := os.ReadFile("admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for field := range reflect.TypeFor[corev1.NodeStatus]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if compared := "object.status.?" + name + " == oldObject.status.?" + name + " "; name != "conditions" && !strings.Contains(string(text), compared) {
			t.Errorf("%s can be written", name)
		}
	}
}
