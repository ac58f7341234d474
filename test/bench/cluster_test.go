package bench

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestCluster measures a server that follows a large cluster.
func TestCluster(t *testing.T) {
	wanted(t, "cluster")
	const namespace, account, nodeName = "csi-addons-node-healer", "node-healer", "node-1"
	api := emptyAPI(t)
	api.Apply(t, "deploy")
	cluster.Create(t, api, cluster.Node(nodeName))
	pods := api.Namespace(t)
	big := bigCluster{api.Admin(), pods, nodeName}
	big.fill(t)

	_, kubeconfig := api.DaemonPod(t, namespace, account, nodeName)
	n := harness.NewNode(t, asReleased, "--kubeconfig="+kubeconfig)
	v := n.NewVolume("tmpfs", "lost")
	object := cluster.Volume{PV: v.PV, ID: v.ID, Driver: harness.Driver, Namespace: pods, Claim: "lost"}
	api.Bind(t, object)
	pod := cluster.Create(t, api, cluster.Pod(pods, "lost", nodeName, object.Claim))
	v.Publish(string(pod.UID))
	request := v.Request()
	request.VolumePath = v.MountPointOf(string(pod.UID))

	n.Start()
	n.Expect("healthy", request)
	harness.Must(t, unix.Unmount(request.GetVolumePath(), 0))
	harness.Eventually(t, "the server knows the cluster", func() bool {
		a, err := n.Call(request)
		return err == nil && strings.HasPrefix(a.GetMessage(), "healed:")
	})
	awaitQuiet(n)
	line := func(what string, t target) {
		now := memoryOf(n)
		row(what, now.String(), mebi(now.resident()), t)
		row("the same, shared pages counted once", now.shares(), mebi(now.share()), untold(" MiB"))
	}
	line(fmt.Sprintf("resident memory of server and idle workers, %d pods on the node, %d PVs in the cluster", crowdPods, crowdVolumes), atMost(60, " MiB"))
	big.change(t)
	n.Expect("healthy", request)
	awaitQuiet(n)
	line("the same, after a change of every object", untold(" MiB"))
	row("the most that the server alone ever had", "", mebi(peakOf(t, n.PID())), untold(" MiB"))
}

// peakOf is the most that a process ever had in memory (proc_pid_status(5),
// VmHWM).
func peakOf(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	harness.Must(t, err)
	for line := range strings.Lines(string(raw)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Fatal("the kernel tells no peak")
	return 0
}
