package app

import (
	"errors"
	"os"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/node"
)

// newCluster reads how to reach the API; nil: there is none. Nothing is sent yet: a server
// that cannot reach it starts all the same, and only reports.
func newCluster(cfg config, host *node.Node) (*cluster.Cluster, error) {
	inContainer := os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	switch {
	case cfg.Standalone:
		return nil, nil //nolint:nilnil // there is none
	case cfg.kubeconfig == "" && !inContainer:
		klog.InfoS("There is no Kubernetes API to ask: only a running container proves that a mount point is wanted")
		return nil, nil //nolint:nilnil // there is none
	case cfg.nodeID == "":
		return nil, errors.New("--node-id: is required in a cluster")
	}
	return cluster.New(cluster.Config{
		Kubeconfig: cfg.kubeconfig, Version: cfg.Version, Node: host, NodeName: cfg.nodeID,
		Namespace: cfg.podNamespace, ConfigMap: cfg.configMap, DriverGrace: cfg.driverGrace,
	})
}
