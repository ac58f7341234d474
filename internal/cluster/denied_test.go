package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const ours = "system:serviceaccount:csi-addons-node-healer:node-healer"

// forbidden is what kube-apiserver 1.37 answers.
func forbidden(resource, group, name, text string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: resource}, name, errors.New(text))
}

var explainDenialsExamples = map[string]struct {
	err  error
	says []string
	not  []string
}{
	"everywhere": {
		forbidden("pods", "", "", `User "`+ours+`" cannot list resource "pods" in API group "" at the cluster scope`),
		[]string{
			"list pods: denied (403)",
			"Fix: apply deploy, or your overlay of it, again",
			"kubectl auth can-i list pods -A --as=" + ours,
		},
		nil,
	},
	"in our namespace": {
		forbidden("configmaps", "", "node-healer", `User "`+ours+`" cannot watch resource "configmaps" in API group "" in the namespace "csi-addons-node-healer"`),
		[]string{
			"watch configmaps in namespace csi-addons-node-healer: denied",
			// The rule names one ConfigMap: a check without the name fails.
			"kubectl auth can-i watch configmaps/node-healer -n csi-addons-node-healer --as=" + ours,
		},
		nil,
	},
	"in another one": {
		forbidden("events", "", "", `User "`+ours+`" cannot create resource "events" in API group "" in the namespace "shop"`),
		[]string{"create events in namespace shop", "can-i create events -n shop --as=" + ours},
		nil,
	},
	"an object of somebody else": {
		forbidden("pods", "", "oven", `User "`+ours+`" cannot get resource "pods" in API group "" in the namespace "bakery"`),
		[]string{"get pods", "can-i get pods -A --as=" + ours},
		[]string{"bakery", "oven"},
	},
	"a group": {
		forbidden("volumeattachments", "storage.k8s.io", "csi-1", `User "`+ours+`" cannot get resource "volumeattachments" in API group "storage.k8s.io" at the cluster scope`),
		[]string{
			"get volumeattachments.storage.k8s.io: denied",
			"can-i get volumeattachments.storage.k8s.io/csi-1 -A --as=" + ours,
		},
		nil,
	},
	"the verb that is missing, not the one that was sent": {
		forbidden("pods", "", "x", `User "`+ours+`" cannot patch resource "pods" in API group "" in the namespace "shop"`),
		[]string{"patch pods in namespace shop", "can-i patch pods/x"},
		nil,
	},
	"whom the API saw, not whom we think we are": {
		forbidden("pods", "", "", `User "system:node:n1" cannot list resource "pods" in API group "" at the cluster scope`),
		[]string{"--as=system:node:n1"},
		[]string{ours},
	},
	"a name that a shell would take apart": {
		forbidden("pods", "", "", `User "eve; reboot" cannot list resource "pods" in API group "" at the cluster scope`),
		[]string{"--as=system:serviceaccount:NAMESPACE:NAME"},
		[]string{"reboot"},
	},
	"the API does not tell": {
		forbidden("pods", "", "", `User "" cannot list resource "pods" in API group "" at the cluster scope`),
		[]string{"--as=system:serviceaccount:NAMESPACE:NAME"},
		nil,
	},
	"no token": {
		forbidden("pods", "", "", `User "system:anonymous" cannot list resource "pods" in API group "" at the cluster scope`),
		[]string{"list pods: denied", "Fix: ", "--as=system:anonymous"},
		nil,
	},
	"wrapped by a reflector": {
		fmt.Errorf("failed to list *v1.Pod: %w", forbidden("pods", "", "", `User "`+ours+`" cannot list resource "pods" in API group "" at the cluster scope`)),
		[]string{"list pods: denied", "can-i list pods"},
		nil,
	},
	"an event of a watch": {
		apierrors.FromObject(status(forbidden("pods", "", "", `User "`+ours+`" cannot watch resource "pods" in API group "" at the cluster scope`))),
		[]string{"watch pods: denied", "can-i watch pods"},
		nil,
	},
}

func TestExplainDenials(t *testing.T) {
	for name, tc := range explainDenialsExamples {
		t.Run(name, func(t *testing.T) {
			err := explain(request{Verb: "get", GroupResource: corev1.Resource("pods")}, tc.err)
			expectText(t, err, tc.says, tc.not)
			if !apierrors.IsForbidden(err) || !sameAnswer(err, tc.err) {
				t.Errorf("it is another answer: %v", err)
			}
			if again := explain(request{Verb: "list", GroupResource: corev1.Resource("nodes")}, fmt.Errorf("failed to list: %w", err)); strings.Count(again.Error(), "Check:") != 1 {
				t.Errorf("explained twice: %v", again)
			}
		})
	}
}

// sameAnswer returns whether two errors are the same answer of the API but for its text.
func sameAnswer(a, b error) bool {
	var one, other apierrors.APIStatus
	if !errors.As(a, &one) || !errors.As(b, &other) {
		return false
	}
	s := one.Status()
	s.Message = other.Status().Message
	return reflect.DeepEqual(s, other.Status())
}

func status(err error) runtime.Object {
	var answer apierrors.APIStatus
	errors.As(err, &answer)
	s := answer.Status()
	return &s
}

func TestExplainUnauthenticated(t *testing.T) {
	for _, sent := range []error{apierrors.NewUnauthorized("Unauthorized"), apierrors.FromObject(status(apierrors.NewUnauthorized("Unauthorized")))} {
		err := explain(request{Verb: "watch", GroupResource: corev1.Resource("pods")}, sent)
		expectText(t, err, []string{"watch pods: not authenticated (401)", "expired", "audience", "clock", "kubectl get serviceaccount -A", "Fix: "}, nil)
		if !apierrors.IsUnauthorized(err) {
			t.Errorf("the original is out of reach of %v", err)
		}
	}
}

// TestExplainOthers: other errors keep their text.
func TestExplainOthers(t *testing.T) {
	plainErr := errors.New("dial tcp 10.96.0.1:443: connect: connection refused")
	for name, tc := range map[string]struct {
		err  error
		says string
	}{
		"no answer at all":   {plainErr, "get pods: dial tcp 10.96.0.1:443: connect: connection refused"},
		"not found":          {apierrors.NewNotFound(corev1.Resource("pods"), "x"), `get pods: pods "x" not found`},
		"an admission rule":  {forbidden("pods", "", "x", `violates PodSecurity "restricted:latest": privileged`), `get pods: pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged`},
		"a quota":            {forbidden("pods", "", "x", "exceeded quota: q"), "exceeded quota: q"},
		"a proxy before it":  {apierrors.NewGenericServerResponse(http.StatusForbidden, "get", corev1.Resource("pods"), "x", "<html>no</html>", 0, false), "<html>no</html>"},
		"a path, no kind":    {forbidden("", "", "", `User "`+ours+`" cannot get path "/healthz"`), `cannot get path "/healthz"`},
		"text that looks so": {forbidden("pods", "", "", `User "a" cannot list resource "p; ls" in API group "" at the cluster scope`), "p; ls"},
	} {
		t.Run(name, func(t *testing.T) {
			err := explain(request{Verb: "get", GroupResource: corev1.Resource("pods"), Namespace: "shop", Name: "x"}, tc.err)
			expectText(t, err, []string{tc.says}, []string{"can-i", "Fix:"})
			if !errors.Is(err, tc.err) && !sameAnswer(err, tc.err) {
				t.Errorf("it is another answer: %v", err)
			}
		})
	}
	if err := explain(request{Verb: "get", GroupResource: corev1.Resource("pods")}, nil); err != nil {
		t.Errorf("nothing went wrong, and yet: %v", err)
	}
}

// TestExplainBounds: texts that are too long or have control characters.
func TestExplainBounds(t *testing.T) {
	longest := "system:serviceaccount:" + strings.Repeat("n", 63) + ":" + strings.Repeat("a", 253)
	const denied = `" cannot list resource "csiaddonsnodes" in API group "csiaddons.openshift.io" in the namespace "`
	for name, err := range map[string]error{
		"a long account":   forbidden("csiaddonsnodes", "csiaddons.openshift.io", strings.Repeat("o", 253), `User "`+longest+denied+strings.Repeat("n", 63)+`"`),
		"a long addition":  forbidden("csiaddonsnodes", "csiaddons.openshift.io", "", `User "`+ours+denied+`x": `+strings.Repeat("why ", 1000)),
		"lines":            forbidden("csiaddonsnodes", "csiaddons.openshift.io", "", `User "`+ours+denied+"x\": one\ntwo\x1b[31m"),
		"long, not ours":   forbidden("pods", "", "x", strings.Repeat("ä\n", 1000)),
		"long and no text": apierrors.NewUnauthorized(strings.Repeat("x\r\n", 1000)),
	} {
		t.Run(name, func(t *testing.T) {
			expectText(t, explain(request{Verb: "list", GroupResource: corev1.Resource("pods")}, err), nil, nil)
		})
	}
	err := explain(request{}, forbidden("pods", "", strings.Repeat("o", 253), `User "`+longest+`" cannot get resource "configmaps" in API group "" in the namespace "shop"`))
	expectText(t, err, []string{"can-i get configmaps", "-n shop", "Fix: apply deploy"}, nil)
}

func expectText(t *testing.T, err error, has, not []string) {
	t.Helper()
	text := err.Error()
	if len(text) >= 500 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
		t.Errorf("%d bytes: %q", len(text), text)
	}
	for _, h := range has {
		if !strings.Contains(text, h) {
			t.Errorf("%q lacks %q", text, h)
		}
	}
	for _, n := range not {
		if strings.Contains(text, n) {
			t.Errorf("%q has %q", text, n)
		}
	}
}
