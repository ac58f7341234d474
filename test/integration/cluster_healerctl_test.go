package integration

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// onNode has root on the node call a volume by what the API says of it.
func (j *jobs) onNode(t *testing.T, program string, v *claimed) {
	claim, pod := j.namespace+"/"+v.claim.Name, j.namespace+"/"+v.pod.Name
	endpoint := "--endpoint=unix://" + j.Socket()
	out, err := exec.CommandContext(t.Context(), program, "list", endpoint).CombinedOutput()
	named := func(line string) bool {
		return strings.Contains(line, v.ID) && strings.Contains(line, v.PV) && strings.Contains(line, pod)
	}
	if err != nil || !slices.ContainsFunc(strings.Split(string(out), "\n"), named) {
		t.Errorf("%v, %s", err, out)
	}
	out, err = exec.CommandContext(t.Context(), program, "status", endpoint).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "api         answers\n") || !strings.Contains(string(out), "policy      heal at most, by ConfigMap "+ownNamespace+"/"+ownConfigMap) {
		t.Errorf("%v, %s", err, out)
	}
	for _, name := range []string{claim, pod} {
		out, err := exec.CommandContext(t.Context(), program, "check", name, endpoint).CombinedOutput()
		if exit := (&exec.ExitError{}); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasPrefix(string(out), "abnormal: "+v.ID+"\n") ||
			!strings.Contains(string(out), " "+claim+"\n") || !strings.Contains(string(out), " "+pod+"\n") {
			t.Errorf("%s: %v, %s", name, err, out)
		}
		out, err = exec.CommandContext(t.Context(), program, "__complete", "heal", endpoint, name[:len(name)-1]).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), name+"\n") {
			t.Errorf("completion of %s: %v, %s", name, err, out)
		}
	}
}

// byHand has a person with the rights of edit find, check and heal a claim by healerctl, and
// one without learn which right is missing.
func (j *jobs) byHand(t *testing.T) {
	program := harness.BuildHealerctl(t)
	call := func(account string, want int, args ...string) string {
		t.Helper()
		args = append(args, "--kubeconfig="+j.api.Kubeconfig(t, j.namespace, account))
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		for begun := time.Now(); args[0] == "heal" && j.IsTransient(string(out)) && time.Since(begun) < harness.Patience; {
			out, err = exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		}
		code := 0
		if exit := (&exec.ExitError{}); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != want {
			t.Errorf("healerctl %s: exit code %d, want %d: %s\n%s", args, code, want, out, j.controller.Log)
		}
		return string(out)
	}
	j.api.Account(t, j.namespace, "editor")
	// What the role edit is made of; no controller makes it here.
	for _, role := range []string{"system:aggregate-to-view", "node-healer-jobs-view", "node-healer-jobs-edit"} {
		cluster.Create(t, j.api, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: j.namespace, Name: strings.ReplaceAll(role, ":", "-")},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: j.namespace, Name: "editor"}},
		})
	}
	j.api.Awaits(t, j.namespace, "editor", rbacv1.PolicyRule{
		APIGroups: []string{"node-healer.csi-addons.io"}, Resources: []string{"volumehealjobs"}, Verbs: []string{"create"},
	}, j.namespace, true)
	j.api.Account(t, j.namespace, "other")

	v := j.lost("job-by-hand")
	j.onNode(t, program, v)
	claim := "pvc/" + v.claim.Name
	here := "--namespace=" + j.namespace
	if out := call("editor", 1, "check", claim, here); !strings.HasPrefix(out, "Succeeded, Abnormal: ") || !strings.Contains(out, "NotMounted") || !strings.Contains(out, "\n"+thisNode+"   true") {
		t.Error(out)
	}
	harness.Eventually(t, "the claim is listed as sick, first", func() bool {
		lines := strings.Split(call("editor", 0, "list", here), "\n")
		return len(lines) > 1 && strings.Contains(lines[1], v.claim.Name+"   ") && strings.Contains(lines[1], "unhealthy   "+thisNode)
	})
	if out := call("editor", 0, "heal", claim, here); !strings.HasPrefix(out, "Succeeded, Healthy: ") || len(harness.Layers(t, v.MountPoint())) != 1 {
		t.Error(out)
	}
	if out := inTerminal(t, "LANG=C", program, "check", claim, here, "--kubeconfig="+j.api.Kubeconfig(t, j.namespace, "editor")).rest(); !strings.Contains(out, "\x1b[32mSucceeded, Healthy: ") {
		t.Errorf("%q", out)
	}
	call("editor", 3, "heal", "pvc/no-such-claim", here)
	call("editor", 0, "heal", "pvc/no-such-claim", here, "--wait=false")
	if out := call("other", 4, "heal", claim, here); !strings.Contains(out, `cannot create resource "volumehealjobs"`) {
		t.Error(out)
	}
	if out := call("editor", 4, "list", "-A"); !strings.Contains(out, `cannot list resource "persistentvolumeclaims"`) {
		t.Error(out)
	}
}
