// node-healer-gateway lets callers from the network reach the node-healer of its
// node, and registers it with the CSI-Addons controller. See docs/gateway.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/gateway"
)

// version is set by the linker.
var version = "unknown"

func main() { command.Main("node-healer-gateway", version, parse, run) }

// run does what the command line asks for: mostly, to serve until ctx ends.
func run(ctx context.Context, cfg config) error {
	api, err := rest.InClusterConfig()
	if cfg.kubeconfig != "" {
		api, err = clientcmd.BuildConfigFromFlags("", cfg.kubeconfig)
	}
	if err != nil {
		return fmt.Errorf("find the Kubernetes API: %w", err)
	}
	api.UserAgent = "node-healer-gateway/" + version
	api.QPS = -1 // package gateway limits the requests about callers itself
	callers, err := gateway.NewCallers(api, cfg.nodeID, cfg.tokenAudience)
	if err != nil {
		return err
	}
	registration, err := gateway.NewRegistration(api, gateway.RegistrationConfig{
		As: cfg.registerAs, Node: cfg.nodeID, Port: cfg.port,
		Pod: cfg.podName, Namespace: cfg.podNamespace, PodUID: cfg.podUID,
	})
	if err != nil {
		return err
	}
	g, err := gateway.New(gateway.Config{Socket: cfg.socket, Callers: callers, TLS: cfg.tls, Registration: registration})
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address(cfg.endpoint))
	if err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	stop, err := serveMetrics(ctx, api, cfg, callers, g)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer stop()
	klog.InfoS("Serving", "endpoint", l.Addr().String(), "socket", cfg.socket, "node", cfg.nodeID, "version", version)
	if err := g.Run(ctx, l); err != nil {
		return err
	}
	klog.InfoS("Stopped")
	return nil
}

// serveMetrics serves the server's metrics, and keeps the Node's condition by them, until ctx
// ends and stop is called, which waits for that.
func serveMetrics(ctx context.Context, api *rest.Config, cfg config, callers *gateway.Callers, g *gateway.Gateway) (stop func(), err error) {
	if cfg.metricsEndpoint == "" {
		return func() {}, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address(cfg.metricsEndpoint))
	if err != nil {
		return nil, fmt.Errorf("--metrics-endpoint: %w", err)
	}
	m := gateway.NewMetrics(cfg.metricsServer, callers)
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		if err := m.Run(ctx, l, g.TLSConfig()); err != nil {
			klog.ErrorS(err, "The metrics are not served any more")
		}
	})
	if cfg.nodeCondition {
		all.Go(func() {
			if err := m.KeepNodeCondition(ctx, api, cfg.nodeID); err != nil {
				klog.ErrorS(err, "The condition of the Node is not kept")
			}
		})
	}
	return func() { cancel(); all.Wait() }, nil
}
