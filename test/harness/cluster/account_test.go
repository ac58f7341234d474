package cluster_test

import (
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

func TestAnAccountMayDoWhatItIsGranted(t *testing.T) {
	c := cluster.Start(t)
	ns := c.Namespace(t)
	c.Account(t, ns, "reader")
	as := "--kubeconfig=" + c.Kubeconfig(t, ns, "reader")
	if out, err := c.TryKubectl(as, "get", "pods", "-n", ns); err == nil || !strings.Contains(out, "Forbidden") {
		t.Fatalf("an account that was granted nothing reads pods: %s", out)
	}
	c.Grant(t, ns, "reader", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}})
	c.Kubectl(t, as, "get", "pods", "-n", ns)
	if out, err := c.TryKubectl(as, "get", "pvc", "-n", ns); err == nil {
		t.Fatalf("it reads claims, too: %s", out)
	}
}

func TestTokens(t *testing.T) {
	c := cluster.Start(t)
	ns := c.Namespace(t)
	c.Account(t, ns, "me")
	for name, test := range map[string]struct {
		options  []cluster.TokenOption
		audience []string
		good     bool
	}{
		"plain":                   {good: true},
		"for another audience":    {options: []cluster.TokenOption{cluster.ForAudience("healer")}},
		"for the asked audience":  {options: []cluster.TokenOption{cluster.ForAudience("healer")}, audience: []string{"healer"}, good: true},
		"plain, another is asked": {audience: []string{"healer"}},
		"ending soon":             {options: []cluster.TokenOption{cluster.Ending(time.Minute)}, good: true},
		"ended lately":            {options: []cluster.TokenOption{cluster.Ending(-30 * time.Second)}, good: true},
		"ended":                   {options: []cluster.TokenOption{cluster.Ending(-2 * time.Minute)}},
	} {
		t.Run(name, func(t *testing.T) {
			status := review(t, c, c.Token(t, ns, "me", test.options...), test.audience...)
			if status.Authenticated != test.good {
				t.Fatalf("authenticated: %v, %s", status.Authenticated, status.Error)
			}
			if want := "system:serviceaccount:" + ns + ":me"; test.good && status.User.Username != want {
				t.Fatalf("it is %s, not %s", status.User.Username, want)
			}
		})
	}
}

func TestATokenNamesThePodItIsBoundTo(t *testing.T) {
	c := cluster.Start(t)
	ns := c.Namespace(t)
	c.Account(t, ns, "me")
	cluster.Create(t, c, cluster.Node("token-node"))
	pod := cluster.Pod(ns, "mine", "token-node")
	pod.Spec.ServiceAccountName = "me"
	pod = cluster.Create(t, c, pod)
	status := review(t, c, c.Token(t, ns, "me", cluster.BoundTo(pod)))
	for key, want := range map[string]string{"pod-name": "mine", "pod-uid": string(pod.UID), "node-name": "token-node"} {
		if got := status.User.Extra["authentication.kubernetes.io/"+key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, not %s", key, got, want)
		}
	}
}

func review(t *testing.T, c *cluster.Cluster, token string, audiences ...string) authenticationv1.TokenReviewStatus {
	t.Helper()
	done, err := c.Admin().AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	}, metav1.CreateOptions{})
	harness.Must(t, err)
	return done.Status
}
