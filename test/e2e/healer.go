package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/registration"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// healerSocket is where the manifest has callers on the node find the server.
const healerSocket = "unix:///run/csi-addons/csi-addons.sock"

const (
	healerNamespace = "csi-addons-node-healer"
	gateway         = "node-healer-gateway"
	controller      = "node-healer-controller"
)

// Healer is the DaemonSet's pod on this node.
type Healer struct {
	n    *Node
	conn *grpc.ClientConn
	// token is a caller's from the network; empty: of root on the node.
	token string
}

// DeployHealer deploys everything and waits until its pods are ready.
func (n *Node) DeployHealer() *Healer {
	n.T.Helper()
	n.Cluster.InstallAddons(n.T)
	n.Cluster.Apply(n.T, "test/e2e/manifests/healer")
	for _, name := range []string{"node-healer", gateway, controller} {
		eventually(n.T, name+" is ready", func() error {
			_, err := n.Cluster.TryKubectl("wait", "--namespace="+healerNamespace, "--for=condition=Ready",
				"--timeout=10s", "pod", "--selector=app.kubernetes.io/name="+name)
			return err
		})
	}
	conn, err := grpc.NewClient(healerSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	harness.Must(n.T, err)
	n.T.Cleanup(func() { _ = conn.Close() })
	return &Healer{n: n, conn: conn}
}

// Call asks for the app's volume, and asks again while the loop is at it, or while only a busy
// machine keeps the healer from its answer.
func (h *Healer) Call(app *App) (answer *healerpb.NodeHealerResponse) {
	h.n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	if h.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+h.token)
	}
	var err error
	eventually(h.n.T, "the healer answers", func() error {
		answer, err = healerpb.NewHealerNodeClient(h.conn).NodeHealer(ctx, &healerpb.NodeHealerRequest{
			VolumeId: app.Volume, VolumePath: app.Published, StagingTargetPath: app.Staged,
		})
		if status.Code(err) == codes.Aborted {
			return err
		}
		return busy(fmt.Sprint(answer.GetMessage(), err))
	})
	harness.Must(h.n.T, err)
	h.n.T.Logf("NodeHealer: abnormal=%v %s", answer.GetAbnormal(), answer.GetMessage())
	return answer
}

// busy returns what was said, if only a busy machine brings that about.
func busy(said string) error {
	if slices.ContainsFunc(harness.BusyAPI, func(part string) bool { return strings.Contains(said, part) }) {
		return errors.New(said)
	}
	return nil
}

// HealsByItself has the node heal without a call, and have the tests' driver stage
// volumes anew.
func (h *Healer) HealsByItself() {
	h.n.T.Helper()
	h.n.Cluster.Kubectl(h.n.T, "patch", "configmap/node-healer", "--namespace="+healerNamespace, "--type=merge",
		`--patch={"data":{"loop":"- loop: heal\n","restage-drivers":"`+csidriver.Name+`: unmount-first\n"}}`)
}

// OverTheNetwork is the same healer, as a controller reaches it: at the gateway's pod,
// with a token for its node that the shipped roles know.
func (h *Healer) OverTheNetwork() *Healer {
	h.n.T.Helper()
	pod := h.Pod(gateway)
	conn, err := grpc.NewClient(net.JoinHostPort(pod.Status.PodIP, "9070"),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	harness.Must(h.n.T, err)
	h.n.T.Cleanup(func() { _ = conn.Close() })
	return &Healer{n: h.n, conn: conn, token: h.n.Cluster.Token(h.n.T, cluster.AddonsNamespace, cluster.AddonsAccount, cluster.ForAudience(registration.Audience(pod.Spec.NodeName)))}
}

// Pod is a DaemonSet's pod, as the API has it now.
func (h *Healer) Pod(set string) *corev1.Pod {
	h.n.T.Helper()
	pods, err := h.n.Cluster.Admin().CoreV1().Pods(healerNamespace).List(h.n.T.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + set})
	harness.Must(h.n.T, err)
	if len(pods.Items) != 1 {
		h.n.T.Fatalf("%s has %d pods", set, len(pods.Items))
	}
	return &pods.Items[0]
}

// tells waits for what both write into the API with the tokens that kubelet gave
// them: the admission policies let it through.
func (n *Node) tells(app *App) {
	n.T.Helper()
	eventually(n.T, "the claim's health and the registration", func() error {
		claim, err := n.Cluster.Admin().CoreV1().PersistentVolumeClaims("default").Get(n.T.Context(), "data", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !strings.Contains(fmt.Sprint(claim.Annotations), "csiaddons.openshift.io/volumehealth.") {
			return fmt.Errorf("the claim of volume %s has the annotations %v", app.Volume, claim.Annotations)
		}
		_, err = n.Cluster.Dynamic().Resource(cluster.CSIAddonsNodes).Namespace(healerNamespace).
			Get(n.T.Context(), nodeName+"-node-healer.csi-addons.io", metav1.GetOptions{})
		return err
	})
}
