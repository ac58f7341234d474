package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// healsItsClaim has a person who may edit the namespace heal the
// claim of a broken volume, without knowing node or path.
func healsItsClaim(t *testing.T, n *Node, app *App) {
	t.Helper()
	n.Cluster.Account(t, "default", "person")
	cluster.Create(t, n.Cluster, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "person"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "person"}},
	})
	healerctl := func(args ...string) (string, error) {
		return run(programs+"/healerctl", append(args, "--kubeconfig="+n.Cluster.Kubeconfig(t, "default", "person"))...)
	}
	eventually(t, "Kubernetes gave the role edit the jobs", func() error {
		_, err := n.Cluster.TryKubectl("auth", "can-i", "create", "volumehealjobs", "--namespace=default", "--as=system:serviceaccount:default:person")
		return err
	})
	breaks(t, n, app)
	n.Restage(app)
	var out string
	var err error
	eventually(t, "healerctl ends", func() error {
		out, err = healerctl("heal", "pvc/data", "--namespace=default")
		return busy(fmt.Sprint(out, err))
	})
	if err != nil || !strings.HasPrefix(out, "Succeeded, Healthy: ") || !strings.Contains(out, nodeName+"   false") {
		t.Fatalf("healerctl: %v: %s", err, out)
	}
	harness.Must(t, app.Read())
	app.wasNotRestarted()
	eventually(t, "the claim is listed as healthy", func() error {
		out, err := healerctl("list", "--namespace=default")
		if err == nil && !regexp.MustCompile(` data +healthy`).MatchString(out) {
			err = errors.New(out)
		}
		return err
	})
}
