package e2e

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
)

const volumeProblem = "CSIVolumeProblem"

// noProblem is what a Node says whose volumes can be used.
const noProblem = "False NoVolumeProblem: the node's volumes can be used"

// losesItsVolume kills the daemon of an app's volume, which nobody heals before the loop may.
func losesItsVolume(t *testing.T, n *Node, healer *Healer, app *App) {
	t.Helper()
	expect(t, healer, app, "healthy") // without a record nothing would be healed
	daemon, err := n.Driver.Daemon(app.Volume)
	harness.Must(t, err)
	harness.Must(t, unix.Kill(daemon, unix.SIGKILL))
}

// leavesCondition has the Node a condition of a gateway that was killed.
func (n *Node) leavesCondition() {
	n.T.Helper()
	n.Cluster.Kubectl(n.T, "patch", "node", nodeName, "--subresource=status", "--type=strategic",
		`--patch={"status":{"conditions":[{"type":"`+volumeProblem+`","status":"False","reason":"NoVolumeProblem","message":"as it was left"}]}}`)
}

// nodeSays waits until the Node's condition is this one; empty: until it has none. What kubelet
// says of the Node stands beside it.
func (n *Node) nodeSays(want string) {
	n.T.Helper()
	eventually(n.T, "the Node says "+want, func() error {
		node, err := n.Cluster.Admin().CoreV1().Nodes().Get(n.T.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		said := ""
		for _, c := range node.Status.Conditions {
			switch {
			case c.Type == volumeProblem:
				said = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
			case c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue:
				return fmt.Errorf("the node is not ready: %s", c.Message)
			}
		}
		if said != want {
			return fmt.Errorf("it says %q", said)
		}
		return nil
	})
}
