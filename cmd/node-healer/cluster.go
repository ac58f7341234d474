package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/kube"
)

// cluster is all that speaks to Kubernetes; nil where there is no API to ask.
type cluster struct {
	// wants is what the API says of this node.
	wants *kube.Cluster
	// reporter tells it how volumes are.
	reporter *kube.Reporter
}

// newCluster reads how to reach the API. Nothing is sent yet: a server that
// cannot reach it starts all the same, and only reports.
func newCluster(cfg config, kubeletRoots ...string) (*cluster, error) {
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
	client, err := kube.NewClient(kube.ClientConfig{Kubeconfig: cfg.cluster.kubeconfig, Version: version})
	if err != nil {
		return nil, err
	}
	c := &cluster{}
	if c.wants, err = kube.NewCluster(kube.ClusterConfig{
		Client:       client,
		Node:         cfg.nodeID,
		Namespace:    cfg.cluster.podNamespace,
		ConfigMap:    cfg.cluster.configMap,
		KubeletRoots: kubeletRoots,
		DriverGrace:  cfg.cluster.driverGrace,
	}); err != nil {
		return nil, err
	}
	c.reporter, err = kube.NewReporter(client, kube.ReporterConfig{
		Node: cfg.nodeID, NodeUID: c.wants.NodeUID, Here: c.wants.Here, Find: c.wants.Subjects,
	})
	return c, err
}

// gate decides what a heal may do: by the word of the cluster where there is one.
func (c *cluster) gate(cfg config, node *host.Node) healer.Gate {
	if c == nil {
		return healer.WantedGate{Node: node, Standalone: cfg.standalone}
	}
	return kube.Gate{Cluster: c.wants, Node: node}
}

// noted takes each answer for those who do not call; nil: nobody is told.
func (c *cluster) noted() func(healer.Report, func(healer.Report) string) {
	if c == nil {
		return nil
	}
	return c.reporter.Note
}

// follow keeps up with the cluster until stop is called, which waits for the end
// of all that it began. It outlives ctx: the last heals still ask.
func (c *cluster) follow(ctx context.Context) (stop func(context.Context) error) {
	if c == nil {
		return func(context.Context) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() { c.wants.Run(ctx) })
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
