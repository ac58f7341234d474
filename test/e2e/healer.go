package e2e

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// healerSocket is where the manifest has callers on the node find the server.
const healerSocket = "unix:///run/csi-addons/csi-addons.sock"

// Healer is the DaemonSet's pod on this node.
type Healer struct {
	n    *Node
	conn *grpc.ClientConn
}

// DeployHealer deploys the DaemonSet and waits until its pod is ready.
func (n *Node) DeployHealer() *Healer {
	n.T.Helper()
	n.Cluster.Apply(n.T, "test/e2e/manifests/healer")
	eventually(n.T, "the healer is ready", func() error {
		_, err := n.Cluster.TryKubectl("wait", "--namespace=csi-addons-node-healer", "--for=condition=Ready",
			"--timeout=10s", "pod", "--selector=app.kubernetes.io/name=node-healer")
		return err
	})
	conn, err := grpc.NewClient(healerSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	harness.Must(n.T, err)
	n.T.Cleanup(func() { _ = conn.Close() })
	return &Healer{n: n, conn: conn}
}

// Call asks for the app's volume.
func (h *Healer) Call(app *App) *healerpb.NodeHealerResponse {
	h.n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	answer, err := healerpb.NewHealerNodeClient(h.conn).NodeHealer(ctx, &healerpb.NodeHealerRequest{
		VolumeId: app.Volume, VolumePath: app.Published, StagingTargetPath: app.Staged,
	})
	harness.Must(h.n.T, err)
	h.n.T.Logf("NodeHealer: abnormal=%v %s", answer.GetAbnormal(), answer.GetMessage())
	return answer
}
