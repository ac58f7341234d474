package cluster

import (
	"path/filepath"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/csi-addons/node-healer/test/harness"
)

// StartWhole is Start for a cluster that lacks nothing but nodes: controllers
// and scheduler run, too. They undo what tests write instead of them, so that a
// test binary has the one or the other. It needs what `make kubernetes` builds.
func StartWhole(tb testing.TB) *Cluster {
	tb.Helper()
	programs := needsPrograms(tb, "etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "kubelet")
	return startShared(tb, &Cluster{programs: programs, whole: true})
}

// startControllers starts controllers and scheduler. Start does not wait for them:
// what they do is seen sooner or later.
func (c *Cluster) startControllers() (err error) {
	// One of each, without leader election.
	alone := []string{"--kubeconfig=" + c.file(adminConfig), "--leader-elect=false", "--secure-port=0"}
	c.controller, err = c.run("kube-controller-manager", append(alone,
		"--service-account-private-key-file="+c.file(signerKey), "--root-ca-file="+c.file(caCert),
		"--flex-volume-plugin-dir="+c.file("volumeplugins"))...) // made, if it is not there
	if err != nil {
		return err
	}
	c.scheduler, err = c.run("kube-scheduler", alone...)
	return err
}

// Kubelet is the path of the program.
func (c *Cluster) Kubelet() string { return filepath.Join(c.programs, "kubelet") }

// KubeletConfig writes the configuration with which the kubelet of a node comes
// to the API, and returns its path.
func (c *Cluster) KubeletConfig(tb testing.TB, node string) string {
	tb.Helper()
	cert, key, err := c.authority.issue(client("system:node:"+node, "system:nodes"))
	harness.Must(tb, err)
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	harness.Must(tb, c.writeConfig(path, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}))
	return path
}
