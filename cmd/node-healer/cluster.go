package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/internal/wanted"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// inCluster is all that uses the Kubernetes API; nil where there is none.
type inCluster struct {
	api      *cluster.Cluster
	policy   *cluster.Policy
	reporter *cluster.Reporter
}

// newCluster reads how to reach the API. Nothing is sent yet: a server that
// cannot reach it starts all the same, and only reports.
func newCluster(cfg config, kubeletRoots ...string) (*inCluster, error) {
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
	client, err := cluster.NewClient(cluster.ClientConfig{Kubeconfig: cfg.cluster.kubeconfig, Version: version})
	if err != nil {
		return nil, err
	}
	c := &inCluster{}
	if c.api, err = cluster.NewCluster(cluster.ClusterConfig{
		Client: client, Node: cfg.nodeID, Namespace: cfg.cluster.podNamespace, ConfigMap: cfg.cluster.configMap,
	}); err != nil {
		return nil, err
	}
	if c.policy, err = cluster.NewPolicy(cluster.PolicyConfig{Cluster: c.api, KubeletRoots: kubeletRoots, DriverGrace: cfg.cluster.driverGrace}); err != nil {
		return nil, err
	}
	c.reporter, err = cluster.NewReporter(cluster.ReporterConfig{Client: client, Node: cfg.nodeID, Cluster: c.api})
	return c, err
}

// gate returns what decides whether a heal may change a volume.
func (c *inCluster) gate(cfg config, host *node.Node) healer.Gate {
	if c == nil {
		return wanted.Gate{Node: host, Standalone: cfg.standalone}
	}
	return cluster.Gate{Policy: c.policy, Node: host}
}

// onReport returns what reports each answer to the cluster; nil without one.
func (c *inCluster) onReport() func(healer.Report, func(healer.Report) string) {
	if c == nil {
		return nil
	}
	return c.reporter.Note
}

// loop returns what the node does by itself now.
func (c *inCluster) loop(cfg config) string {
	if c == nil {
		return cfg.loop
	}
	return c.policy.Loop(cfg.loop)
}

// follow runs informers, policy and reports until stop is called, which waits for
// their end. It outlives ctx: the last heals still ask the API.
func (c *inCluster) follow(ctx context.Context) (stop func(context.Context) error) {
	if c == nil {
		return func(context.Context) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() { c.api.Run(ctx) })
	all.Go(func() { c.policy.Run(ctx) })
	all.Go(func() { c.reporter.Run(ctx) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		all.Wait()
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
