package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/internal/wanted"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// newCluster reads how to reach the API; nil: there is none. Nothing is sent yet: a server
// that cannot reach it starts all the same, and only reports.
func newCluster(cfg config, host *node.Node) (*cluster.Cluster, error) {
	inContainer := os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	switch {
	case cfg.standalone:
		return nil, nil //nolint:nilnil // there is none
	case cfg.cluster.kubeconfig == "" && !inContainer:
		klog.InfoS("There is no Kubernetes API to ask: only a running container proves that a mount point is wanted")
		return nil, nil //nolint:nilnil // there is none
	case cfg.nodeID == "":
		return nil, errors.New("--node-id: is required in a cluster")
	}
	return cluster.New(cluster.Config{
		Kubeconfig: cfg.cluster.kubeconfig, Version: version, Node: host, NodeName: cfg.nodeID,
		Namespace: cfg.cluster.podNamespace, ConfigMap: cfg.cluster.configMap, DriverGrace: cfg.cluster.driverGrace,
	})
}

// newGate returns what decides whether a heal may change a volume.
func newGate(cfg config, c *cluster.Cluster, host *node.Node) healer.Gate {
	if c == nil {
		return wanted.Gate{Node: host, Standalone: cfg.standalone}
	}
	return c
}

// followCluster has the cluster followed until stop is called, which waits for the end of
// that. It outlives ctx: the last heals still ask the API.
func followCluster(ctx context.Context, c *cluster.Cluster) (stop func(context.Context) error) {
	if c == nil {
		return func(context.Context) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	return func(ctx context.Context) error {
		cancel()
		select {
		case <-ended:
			return nil
		case <-ctx.Done(): // client-go's informers may sleep between two attempts
			return fmt.Errorf("leave the Kubernetes API: %w", ctx.Err())
		}
	}
}
