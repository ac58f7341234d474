// Package daemonset holds no code: its test reads the manifests next to it.
package daemonset

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// kustomization is the part of kustomize's format that is used here. Anything
// else in the file is a mistake, or belongs into this type first.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Namespace  string   `json:"namespace"`
	Resources  []string `json:"resources"`
	Images     []struct {
		Name   string `json:"name"`
		NewTag string `json:"newTag"`
	} `json:"images"`
}

// read decodes a manifest; an unknown or doubled field fails the test.
func read[T any](t *testing.T, file string) T {
	t.Helper()
	var object T
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return object
}

func readDaemonSet(t *testing.T) appsv1.DaemonSet {
	t.Helper()
	return read[appsv1.DaemonSet](t, "daemonset.yaml")
}

// server is the one container of the DaemonSet.
func server(t *testing.T) corev1.Container {
	t.Helper()
	containers := readDaemonSet(t).Spec.Template.Spec.Containers
	if len(containers) != 1 {
		t.Fatalf("%d containers, want 1", len(containers))
	}
	return containers[0]
}

func TestKustomizationListsEveryFile(t *testing.T) {
	k := read[kustomization](t, "kustomization.yaml")
	if k.APIVersion != "kustomize.config.k8s.io/v1beta1" || k.Kind != "Kustomization" {
		t.Errorf("is %s %s", k.APIVersion, k.Kind)
	}
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return f == "kustomization.yaml" })
	if have := slices.Sorted(slices.Values(k.Resources)); !slices.Equal(have, files) {
		t.Errorf("lists %v, the files are %v", have, files)
	}
}

func TestImageIsPinned(t *testing.T) {
	image := server(t).Image
	for _, i := range read[kustomization](t, "kustomization.yaml").Images {
		if i.Name != image {
			continue
		}
		if i.NewTag == "" || i.NewTag == "latest" {
			t.Errorf("%s has the tag %q", image, i.NewTag)
		}
		return
	}
	t.Errorf("kustomization.yaml pins no tag for %s", image)
}

func TestEverythingIsInTheNamespace(t *testing.T) {
	ns := read[corev1.Namespace](t, "namespace.yaml")
	if selector, set := ns.Annotations["openshift.io/node-selector"]; !set || selector != "" {
		t.Error("OpenShift's default node selector counts for the DaemonSets")
	}
	sa := read[corev1.ServiceAccount](t, "serviceaccount.yaml")
	ds := readDaemonSet(t)

	for have, want := range map[string]string{
		ns.APIVersion + " " + ns.Kind: "v1 Namespace",
		sa.APIVersion + " " + sa.Kind: "v1 ServiceAccount",
		ds.APIVersion + " " + ds.Kind: "apps/v1 DaemonSet",
	} {
		if have != want {
			t.Errorf("is %s, want %s", have, want)
		}
	}
	if ns.Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
		t.Error("the namespace does not admit privileged pods")
	}
	for what, have := range map[string]string{
		"service account": sa.Namespace,
		"daemonset":       ds.Namespace,
		"kustomization":   read[kustomization](t, "kustomization.yaml").Namespace,
	} {
		if have != ns.Name {
			t.Errorf("%s is in %q, want %q", what, have, ns.Name)
		}
	}
	if have := ds.Spec.Template.Spec.ServiceAccountName; have != sa.Name {
		t.Errorf("the pods run as %q, want %q", have, sa.Name)
	}
}

func TestOnlyTheServerHasAToken(t *testing.T) {
	if automount := read[corev1.ServiceAccount](t, "serviceaccount.yaml").AutomountServiceAccountToken; automount == nil || *automount {
		t.Error("every pod of the service account mounts a token")
	}
	if automount := readDaemonSet(t).Spec.Template.Spec.AutomountServiceAccountToken; automount == nil || !*automount {
		t.Error("the server has no token to ask the API with")
	}
}

func TestSelectorMatchesPods(t *testing.T) {
	spec := readDaemonSet(t).Spec
	if len(spec.Selector.MatchLabels) == 0 {
		t.Error("the selector is empty")
	}
	for key, value := range spec.Selector.MatchLabels {
		if spec.Template.Labels[key] != value {
			t.Errorf("pods lack the label %s=%s", key, value)
		}
	}
}

func TestPodRunsOnEveryLinuxNode(t *testing.T) {
	pod := readDaemonSet(t).Spec.Template.Spec
	if pod.PriorityClassName != "system-node-critical" {
		t.Errorf("priority class is %q", pod.PriorityClassName)
	}
	if pod.NodeSelector["kubernetes.io/os"] != "linux" {
		t.Errorf("node selector is %v", pod.NodeSelector)
	}
	if !slices.Contains(pod.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists}) {
		t.Errorf("does not tolerate every taint: %v", pod.Tolerations)
	}
	gateway := read[appsv1.DaemonSet](t, "../gateway/daemonset.yaml").Spec.Template.Spec
	for _, affinity := range []*corev1.Affinity{pod.Affinity, gateway.Affinity} { // where it would stay pending
		if text := affinity.String(); !strings.Contains(text, "virtual-kubelet") || !strings.Contains(text, "fargate") {
			t.Errorf("goes to nodes that run none: %s", text)
		}
	}
}

// GKE lets no pod of these priorities into a namespace without a quota for them.
func TestQuotaCountsOurPriorities(t *testing.T) {
	quota := read[corev1.ResourceQuota](t, "resourcequota.yaml")
	if quota.Spec.ScopeSelector == nil || len(quota.Spec.ScopeSelector.MatchExpressions) != 1 {
		t.Fatalf("selects %v", quota.Spec.ScopeSelector)
	}
	of := quota.Spec.ScopeSelector.MatchExpressions[0]
	for _, file := range []string{"daemonset.yaml", "../gateway/daemonset.yaml", "../controller/deployment.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		class := regexp.MustCompile(`priorityClassName: (\S+)`).FindStringSubmatch(string(text))
		if len(class) == 0 || of.ScopeName != corev1.ResourceQuotaScopePriorityClass || of.Operator != corev1.ScopeSelectorOpIn || !slices.Contains(of.Values, class[1]) {
			t.Errorf("%s: %v is not among %v", file, class, of)
		}
	}
	if pods := quota.Spec.Hard[corev1.ResourcePods]; pods.Value() < 1e6 {
		t.Errorf("only %s pods", pods.String())
	}
}

func TestPodReachesTheHost(t *testing.T) {
	pod := readDaemonSet(t).Spec.Template.Spec
	if !pod.HostPID {
		t.Error("no hostPID")
	}
	// Not needed: a listener would be on the node's addresses.
	if pod.HostNetwork {
		t.Error("hostNetwork")
	}
	sc := server(t).SecurityContext
	if sc == nil || sc.Privileged == nil || !*sc.Privileged {
		t.Error("not privileged")
	}
	if sc == nil || sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem {
		t.Error("the root filesystem is writable")
	}
}

func TestMountsHaveVolumes(t *testing.T) {
	volumes := map[string]*corev1.HostPathVolumeSource{}
	for _, v := range readDaemonSet(t).Spec.Template.Spec.Volumes {
		if v.HostPath == nil || v.HostPath.Type == nil {
			t.Errorf("volume %s is no hostPath with a type", v.Name)
			continue
		}
		volumes[v.Name] = v.HostPath
	}
	for _, m := range server(t).VolumeMounts {
		source, ok := volumes[m.Name]
		if !ok {
			t.Errorf("%s: no volume %s", m.MountPath, m.Name)
			continue
		}
		// Requests name paths of the host.
		if source.Path != m.MountPath {
			t.Errorf("%s of the host is at %s", source.Path, m.MountPath)
		}
		delete(volumes, m.Name)
	}
	for name := range volumes {
		t.Errorf("volume %s is mounted nowhere", name)
	}
}

func TestPathsOfFlagsAreMounted(t *testing.T) {
	mounts := server(t).VolumeMounts
	args := arguments(t)
	for _, path := range []string{
		filepath.Dir(strings.TrimPrefix(args["endpoint"], "unix://")),
		filepath.Dir(strings.TrimPrefix(args["gateway-socket"], "unix://")),
		args["kubelet-root"],
		args["state-dir"],
		// What the kernel knows of block devices and FUSE connections.
		"/sys",
	} {
		if !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == path }) {
			t.Errorf("%q is not mounted", path)
		}
	}
}

func TestKubeletRootPropagatesBothWays(t *testing.T) {
	root := arguments(t)["kubelet-root"]
	for _, m := range server(t).VolumeMounts {
		if m.MountPath != root {
			continue
		}
		if m.MountPropagation == nil || *m.MountPropagation != corev1.MountPropagationBidirectional {
			t.Errorf("%s is not mounted with Bidirectional propagation", root)
		}
		return
	}
	t.Errorf("%s is not mounted", root)
}

func TestFlagsAreKnown(t *testing.T) {
	run := exec.Command("go", "run", "-buildvcs=false", "-tags=grpcnotrace", "github.com/csi-addons/node-healer/cmd/node-healer", "--help")
	run.Env = append(os.Environ(), "CGO_ENABLED=0")
	help, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	var flags []string
	for _, match := range regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllStringSubmatch(string(help), -1) {
		flags = append(flags, match[1])
	}
	for name := range arguments(t) {
		if !slices.Contains(flags, name) {
			t.Errorf("no such flag: %s; the server knows %v", name, flags)
		}
	}
}

func TestVariablesOfFlagsAreSet(t *testing.T) {
	c := server(t)
	for _, arg := range c.Args {
		for _, match := range regexp.MustCompile(`\$\((\w+)\)`).FindAllStringSubmatch(arg, -1) {
			if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == match[1] }) {
				t.Errorf("%s: %s is not set", arg, match[1])
			}
		}
	}
}

// arguments are the container's, by flag name.
func arguments(t *testing.T) map[string]string {
	t.Helper()
	args := map[string]string{}
	for _, arg := range server(t).Args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if _, twice := args[name]; twice && name != "path-root" {
			t.Errorf("--%s is given twice", name)
		}
		args[name] = value
	}
	return args
}

func TestProbesAskTheSocket(t *testing.T) {
	c := server(t)
	want := []string{"/usr/local/bin/node-healer", "--probe", "--endpoint=" + arguments(t)["endpoint"]}
	for what, probe := range map[string]*corev1.Probe{
		"startup":   c.StartupProbe,
		"liveness":  c.LivenessProbe,
		"readiness": c.ReadinessProbe,
	} {
		if probe == nil || probe.Exec == nil || !slices.Equal(probe.Exec.Command, want) {
			t.Errorf("the %s probe does not run %q", what, want)
		}
	}
}

// TestTheServerHasNoNetworkListener: the gateway has one.
func TestTheServerHasNoNetworkListener(t *testing.T) {
	if ports := server(t).Ports; len(ports) > 0 {
		t.Errorf("the container has ports: %v", ports)
	}
}

func TestResourcesAreBounded(t *testing.T) {
	r := server(t).Resources
	if r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() {
		t.Error("requests are missing")
	}
	// 256 workers, the maximum, take 185 MiB while they wait.
	if limit := r.Limits.Memory().Value(); limit < 512<<20 {
		t.Errorf("memory is limited to %d bytes", limit)
	}
	if !r.Limits.Cpu().IsZero() {
		t.Error("CPU is limited: a throttled heal takes longer")
	}
}

func TestUpdateGoesNodeByNode(t *testing.T) {
	ds := readDaemonSet(t)
	u := ds.Spec.UpdateStrategy
	if u.Type != appsv1.RollingUpdateDaemonSetStrategyType || u.RollingUpdate == nil || u.RollingUpdate.MaxUnavailable == nil {
		t.Fatalf("update strategy is %+v", u)
	}
	// The stages of a shutdown: engine 15 s and 3 s, last answers 1.5 s, metrics and API 5 s each, workers 15 s;
	// and time between them on a busy node.
	if s := ds.Spec.Template.Spec.TerminationGracePeriodSeconds; s == nil || *s < 50 {
		t.Error("a running step gets no time to reach a safe point")
	}
}
