package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/csi-addons/node-healer/test/harness/cluster"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// busyboxImage is the content of all containers but ours, and of the sandboxes
// that keep their namespaces.
const (
	busyboxImage = "localhost/busybox:e2e"
	healerImage  = "ghcr.io/csi-addons/node-healer:e2e"
)

// Node is the one node of a cluster, with a CSI driver.
type Node struct {
	T       testing.TB
	Cluster *cluster.Cluster
	Driver  csidriver.Driver
	// stopDriver ends the driver's process, and its daemons.
	stopDriver func()
}

// Start starts the cluster and the node, until the test ends.
func Start(t testing.TB) *Node {
	t.Helper()
	needs(t)
	n := &Node{
		T: t, Cluster: cluster.StartWhole(t),
		Driver: csidriver.Driver{Kubelet: kubeletRoot, Volumes: "/var/lib/" + csidriver.Name, NodeID: nodeName},
	}
	t.Cleanup(n.explain)
	serveAPI(t, n.Cluster)
	startContainerd(t, busybox(), healer())
	n.stopDriver = start(t, "driver", n.Driver.Command())
	startKubelet(t, n.Cluster)
	return n
}

func busybox() image {
	return image{
		name: busyboxImage, programs: map[string]string{"bin/busybox": "/bin/busybox"},
		command: []string{"/bin/busybox", "sleep", "2147483647"},
	}
}

// healer is the image of the Dockerfile, of what `make build` has built.
func healer() image {
	const dir = "usr/local/bin/"
	return image{
		name: healerImage,
		programs: map[string]string{
			dir + "node-healer":            filepath.Join(programs, "node-healer"),
			dir + "node-healer-worker":     filepath.Join(programs, "node-healer-worker"),
			dir + "node-healer-gateway":    filepath.Join(programs, "node-healer-gateway"),
			dir + "node-healer-controller": filepath.Join(programs, "node-healer-controller"),
			dir + "healerctl":              filepath.Join(programs, "healerctl"),
		},
		command: []string{"/" + dir + "node-healer"},
	}
}

// explain shows what the parts of a node said where a test has failed.
func (n *Node) explain() {
	if !n.T.Failed() {
		return
	}
	for _, args := range [][]string{
		{"get", "nodes,pods,persistentvolumeclaims,daemonsets", "--all-namespaces", "--output=wide"},
		{"get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"},
	} {
		out, err := n.Cluster.TryKubectl(args...)
		n.T.Logf("kubectl %v: %v\n%s", args, err, out)
	}
	for _, pattern := range []string{"*.log", "pods/*/*/*.log"} {
		logs, _ := filepath.Glob(filepath.Join(logDir, pattern))
		for _, log := range logs {
			n.T.Logf("%s:\n%s", log, tail(log))
		}
	}
	table, _ := os.ReadFile("/proc/self/mountinfo")
	n.T.Logf("mounts of the node:\n%s", table)
}
