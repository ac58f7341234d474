package integration

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/registration"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/test/harness"
)

// stolenToken is what the gateway of a node that was taken over gets from the controller:
// it is good there, and nowhere else.
func (j *jobs) stolenToken(t *testing.T) {
	taken := newFakeGateway(t, j.api, "node-taken", func(*healerpb.NodeHealerRequest, <-chan struct{}) error { return nil })
	claim, _ := j.used("taken", taken.node)
	j.reports(j.run(newJob(j.namespace, "taken", claim)), v1alpha1.ResultSucceeded, "Healthy", "healthy")
	stolen, _ := taken.token.Load().(string)
	if stolen == "" {
		t.Fatal("the controller sent no token")
	}
	for node, want := range map[string]bool{taken.node: true, thisNode: false} {
		review, err := j.api.Admin().AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: stolen, Audiences: []string{registration.Audience(node)}},
		}, metav1.CreateOptions{})
		harness.Must(t, err)
		if review.Status.Authenticated != want {
			t.Errorf("for %s: %+v", node, review.Status)
		}
	}
	v := j.lost("job-stolen")
	err := heal(v)(within(t), j.dial(stolen))
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "another audience") {
		t.Errorf("another node's gateway: %v", err)
	}
	if len(harness.Layers(t, v.MountPoint())) != 0 {
		t.Error("the volume was healed")
	}
	config, err := clientcmd.BuildConfigFromFlags("", j.api.Kubeconfig(t, ownNamespace, controllerName))
	harness.Must(t, err)
	config.BearerToken = stolen
	client, err := kubernetes.NewForConfig(config)
	harness.Must(t, err)
	if _, err := client.CoreV1().Nodes().Get(t.Context(), thisNode, metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the API: %v", err)
	}
	// The same token is good at that node's gateway.
	j.gateway.Stop()
	j.startGateway("--node-id=" + taken.node)
	if err := identify(within(t), j.dial(stolen)); err != nil {
		t.Errorf("the node's own gateway: %v", err)
	}
	j.gateway.Stop()
	uid := j.now().GetUID()
	j.remove()
	j.startGateway()
	j.appears(uid)
}

// noToken takes the right to make tokens away.
func (j *jobs) noToken(t *testing.T) {
	newFakeGateway(t, j.api, "node-tokenless", func(*healerpb.NodeHealerRequest, <-chan struct{}) error { return nil })
	claim, _ := j.used("tokenless", "node-tokenless")
	patch := func(verb string) {
		j.api.Kubectl(t, "patch", "role", "-n", ownNamespace, controllerName, "--type=json",
			`--patch=[{"op": "replace", "path": "/rules/2/verbs", "value": ["`+verb+`"]}]`)
		j.api.Awaits(t, ownNamespace, controllerName, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{controllerName}, Verbs: []string{"create"},
		}, ownNamespace, verb == "create")
	}
	patch("get")
	defer patch("create")
	job := j.run(newJob(j.namespace, "tokenless", claim))
	j.reports(job, v1alpha1.ResultFailed, "TokenNotMade", "serviceaccounts/token")
}

// TestControllersTokensAreForOneNode tries every token that the controller's account could
// make for itself.
func TestControllersTokensAreForOneNode(t *testing.T) {
	n := newNodesTokens(t)
	installJobs(t, n.api)
	pod, kubeconfig := newControllerPod(t, n.api)
	other, _ := newControllerPod(t, n.api)
	client := func(kubeconfig string) *kubernetes.Clientset {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		harness.Must(t, err)
		made, err := kubernetes.NewForConfig(config)
		harness.Must(t, err)
		return made
	}
	own, none := client(kubeconfig), client(n.api.Kubeconfig(t, ownNamespace, controllerName))
	request := func(c kubernetes.Interface, change func(*authenticationv1.TokenRequestSpec)) func(dryRun []string) error {
		return func(dryRun []string) error {
			spec := authenticationv1.TokenRequestSpec{
				Audiences: []string{registration.Audience("node-1")}, ExpirationSeconds: ptr.To[int64](600),
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
			}
			change(&spec)
			_, err := c.CoreV1().ServiceAccounts(ownNamespace).CreateToken(t.Context(), controllerName, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{DryRun: dryRun})
			return err
		}
	}
	for what, change := range map[string]func(*authenticationv1.TokenRequestSpec){
		"the API server":         func(s *authenticationv1.TokenRequestSpec) { s.Audiences = nil },
		"the API server by name": func(s *authenticationv1.TokenRequestSpec) { s.Audiences = []string{n.api.APIAudience(t)} },
		"all nodes":              func(s *authenticationv1.TokenRequestSpec) { s.Audiences = []string{"node-healer.csi-addons.io"} },
		"two nodes": func(s *authenticationv1.TokenRequestSpec) {
			s.Audiences = append(s.Audiences, registration.Audience("node-2"))
		},
		"a node and another": func(s *authenticationv1.TokenRequestSpec) { s.Audiences = append(s.Audiences, "vault") },
		"no pod":             func(s *authenticationv1.TokenRequestSpec) { s.BoundObjectRef = nil },
		"no pod's uid":       func(s *authenticationv1.TokenRequestSpec) { s.BoundObjectRef.UID = "" },
		"another pod": func(s *authenticationv1.TokenRequestSpec) {
			s.BoundObjectRef.Name, s.BoundObjectRef.UID = other.Name, other.UID
		},
		"longer":             func(s *authenticationv1.TokenRequestSpec) { s.ExpirationSeconds = ptr.To[int64](601) },
		"an hour by default": func(s *authenticationv1.TokenRequestSpec) { s.ExpirationSeconds = nil },
	} {
		n.must(what, false, request(own, change))
	}
	n.must("a token that names no pod", false, request(none, func(*authenticationv1.TokenRequestSpec) {}))
	n.must("one node", true, request(own, func(*authenticationv1.TokenRequestSpec) {}))
	n.must("the second node", true, request(own, func(s *authenticationv1.TokenRequestSpec) { s.Audiences = []string{registration.Audience("node-2")} }))
	// What its role does not allow: another account's, whatever it is for.
	_, err := own.CoreV1().ServiceAccounts(ownNamespace).CreateToken(t.Context(), ownAccount, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{registration.Audience("node-1")},
	}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || deniedByPolicy(err) {
		t.Errorf("another account's token: %v", err)
	}
	// Others are not held to it.
	n.must("an administrator", true, request(n.api.Admin(), func(s *authenticationv1.TokenRequestSpec) { s.Audiences, s.BoundObjectRef = nil, nil }))
}
