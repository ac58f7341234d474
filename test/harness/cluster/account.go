package cluster

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/csi-addons/node-healer/test/harness"
)

// Namespace makes a namespace that no other test has. It stays: no controller
// runs that would empty and remove it.
func (c *Cluster) Namespace(tb testing.TB) string {
	tb.Helper()
	made, err := c.admin.CoreV1().Namespaces().Create(tb.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	harness.Must(tb, err)
	return made.Name
}

// Account makes sure that there is such a service account, and its namespace.
// Both stay.
func (c *Cluster) Account(tb testing.TB, namespace, name string) {
	tb.Helper()
	_, err := c.admin.CoreV1().Namespaces().Create(tb.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		harness.Must(tb, err)
	}
	_, err = c.admin.CoreV1().ServiceAccounts(namespace).Create(tb.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		harness.Must(tb, err)
	}
}

// Grant allows something to a service account in the whole cluster, until the
// test ends, and waits until that counts: the API hears of its own objects a moment later.
func (c *Cluster) Grant(tb testing.TB, namespace, account string, rule rbacv1.PolicyRule) {
	tb.Helper()
	role := Create(tb, c, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: []rbacv1.PolicyRule{rule},
	})
	c.BindRole(tb, namespace, account, role.Name)
	c.Awaits(tb, namespace, account, rule, "", true)
}

// Awaits waits until the API lets an account do the first verb on the first thing of a rule, or not,
// in a namespace; empty: in the whole cluster.
func (c *Cluster) Awaits(tb testing.TB, namespace, account string, rule rbacv1.PolicyRule, in string, is bool) {
	tb.Helper()
	harness.Eventually(tb, "what "+account+" may is known", func() bool { return c.may(tb, namespace, account, rule, in) == is })
}

func (c *Cluster) may(tb testing.TB, namespace, account string, rule rbacv1.PolicyRule, in string) bool {
	tb.Helper()
	asked := authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + namespace + ":" + account}
	if len(rule.NonResourceURLs) > 0 {
		asked.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: rule.NonResourceURLs[0], Verb: rule.Verbs[0]}
	} else {
		resource, sub, _ := strings.Cut(rule.Resources[0], "/")
		asked.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: in, Group: rule.APIGroups[0], Resource: resource, Subresource: sub, Verb: rule.Verbs[0]}
		if len(rule.ResourceNames) > 0 {
			asked.ResourceAttributes.Name = rule.ResourceNames[0]
		}
	}
	answer, err := c.admin.AuthorizationV1().SubjectAccessReviews().Create(tb.Context(), &authorizationv1.SubjectAccessReview{Spec: asked}, metav1.CreateOptions{})
	harness.Must(tb, err)
	return answer.Status.Allowed
}

// BindRole binds a ClusterRole that is there to a service account, until the test ends.
func (c *Cluster) BindRole(tb testing.TB, namespace, account, role string) {
	tb.Helper()
	Create(tb, c, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	})
}

// DaemonPod creates the pod that a DaemonSet has on a node, until the test ends,
// and returns it with the path of its own kubeconfig: its token names pod and node,
// as one from kubelet does. Both have to be there.
func (c *Cluster) DaemonPod(tb testing.TB, namespace, set, node string, change ...func(*corev1.Pod)) (pod *corev1.Pod, kubeconfig string) {
	tb.Helper()
	of, err := c.admin.AppsV1().DaemonSets(namespace).Get(tb.Context(), set, metav1.GetOptions{})
	harness.Must(tb, err)
	pod = PodOf(of, node)
	for _, ch := range change {
		ch(pod)
	}
	pod = Create(tb, c, pod)
	return pod, c.PodKubeconfig(tb, pod)
}

// PodKubeconfig writes the kubeconfig of a pod whose account has a Role and a ClusterRole of its name,
// as the shipped ones have, and waits until the API knows token and roles.
func (c *Cluster) PodKubeconfig(tb testing.TB, pod *corev1.Pod) (path string) {
	tb.Helper()
	namespace, account := pod.Namespace, pod.Spec.ServiceAccountName
	path = c.Kubeconfig(tb, namespace, account, BoundTo(pod))
	config, err := clientcmd.BuildConfigFromFlags("", path)
	harness.Must(tb, err)
	client, err := kubernetes.NewForConfig(config)
	harness.Must(tb, err)
	harness.Eventually(tb, "the API knows the pod's token", func() bool {
		_, err := client.AuthenticationV1().SelfSubjectReviews().Create(tb.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err == nil
	})
	all, err := c.admin.RbacV1().ClusterRoles().Get(tb.Context(), account, metav1.GetOptions{})
	harness.Must(tb, err)
	own, err := c.admin.RbacV1().Roles(namespace).Get(tb.Context(), account, metav1.GetOptions{})
	harness.Must(tb, err)
	c.Awaits(tb, namespace, account, all.Rules[0], "", true)
	c.Awaits(tb, namespace, account, own.Rules[0], namespace, true)
	return path
}
