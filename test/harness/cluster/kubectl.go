package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// adminConfig is kubectl's file of the cluster.
const adminConfig = "admin.kubeconfig"

// AdminKubeconfig is the path of the administrator's kubeconfig, for other clients.
func (c *Cluster) AdminKubeconfig() string { return c.file(adminConfig) }

// Kubectl runs the real kubectl as administrator, fails the test when it fails,
// and returns its output.
func (c *Cluster) Kubectl(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := c.TryKubectl(args...)
	if err != nil {
		tb.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

// TryKubectl is Kubectl for what may fail: `auth can-i` fails to say no.
func (c *Cluster) TryKubectl(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.programs, "kubectl"), args...)
	// It caches what the API offers in its home.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.file(adminConfig), "HOME="+c.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
