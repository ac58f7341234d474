package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/loop"
	"github.com/csi-addons/node-healer/internal/metrics"
	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/internal/setup"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// run serves until ctx ends, then closes in the order of use.
func run(ctx context.Context, cfg config) (err error) {
	parts, err := setup.Open(ctx, cfg.Config)
	if err != nil {
		return err
	}
	unwatch := func(context.Context) error { return nil }
	defer func() {
		err = errors.Join(err, parts.Close(ctx, unwatch))
		if err == nil {
			klog.InfoS("Stopped")
		}
	}()
	counts := metrics.New(cfg.Version, parts.Workers.Stats)
	counts.CountAPIRequests() // before the first client of the API: client-go reads without a lock what is set here
	cluster, err := newCluster(cfg, parts.Node)
	if err != nil {
		return err
	}
	engine, err := parts.NewEngine(ctx, cluster, newStager(cfg, cluster))
	if err != nil {
		return err
	}
	counted := counts.Counting(engine)
	var loop *loop.Loop // made with the server, and before it serves
	states := func(ctx context.Context) healer.LoopState { return loop.States(ctx) }
	server, err := parts.NewServer(counted, cluster, states) //nolint:contextcheck // a stream has its own
	if err != nil {
		return err
	}
	loop = newLoop(cfg, parts.Node, counted, counts, cluster, server)
	served, err := listen(cfg, server) //nolint:contextcheck // bind(2) does not wait
	if err != nil {
		return err
	}
	unserve, err := serveMetrics(cfg, counts, server) //nolint:contextcheck // as above
	if err != nil {
		return err
	}
	parts.OnStop(setup.BriefTimeout, unserve)
	if loop != nil {
		unwatch = setup.Background(ctx, "the loop's checks go on", loop.Run)
	}
	klog.InfoS("Serving", "endpoint", cfg.endpoint, "gatewaySocket", cfg.gatewaySocket, "name", cfg.Name, "drivers", cfg.Drivers,
		"node", cfg.nodeID, "mode", cfg.mode, "loop", cfg.loop, "standalone", cfg.Standalone, "kubernetes", cluster != nil, "version", cfg.Version)
	select {
	case err = <-served:
	case <-ctx.Done():
		klog.InfoS("Stopping: no new calls, running work may end")
	}
	return err
}

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

// newStager returns what says which drivers stage volumes anew, and with what.
func newStager(cfg config, c *cluster.Cluster) driver.Stager {
	switch {
	case c != nil:
		return c
	case !cfg.Standalone:
		return noCluster{}
	}
	return driver.NewFromCall(cfg.restageDrivers)
}

// noCluster is the Stager where there is neither an API nor --standalone.
type noCluster struct{}

var errNoCluster = errors.New("there is no Kubernetes API to ask what the driver is to stage")

func (noCluster) Order(string) (healer.RestageOrder, error) { return "", errNoCluster }

// Usage implements driver.Stager: all of it is optional.
func (noCluster) Usage(context.Context, healer.Case, healer.MountPoint) (healer.StageRequest, error) {
	return healer.StageRequest{}, nil
}

func (noCluster) Request(context.Context, healer.Case, healer.MountPoint) (healer.StageRequest, error) {
	return healer.StageRequest{}, errNoCluster
}

// newLoop returns the node's own loop; nil with --loop=off and --mode=off.
func newLoop(cfg config, host *node.Node, engine metrics.Counting, m *metrics.Metrics, c *cluster.Cluster, server *nodeserver.Server) *loop.Loop {
	if cfg.loop == cluster.LoopOff || cfg.mode == modeOff {
		return nil
	}
	action := func() loop.Action { return loop.Action(cfg.loop) }
	if c != nil {
		action = func() loop.Action { return loop.Action(c.Loop(cfg.loop)) }
	}
	loop := loop.New(loop.Config{
		Node: host, Engine: engine, Events: func(ctx context.Context) loop.Events { return host.SuperblockEvents(ctx) },
		Publish: server.Publish, Drivers: cfg.Drivers, Interval: cfg.checkInterval,
		Action: action, DryRun: cfg.DryRun,
		Recovered: m.Recovered,
	})
	m.Watch(loop.States)
	return loop
}

// listen serves the callers on this node, and the gateway on a socket of its own, if one
// is configured. Each sends its result to served. No call is answered before both sockets are there: a
// gateway that finds its own not yet open to it would tell its caller so.
func listen(cfg config, server *nodeserver.Server) (served chan error, err error) {
	served = make(chan error, 2)
	local, err := nodeserver.Listen(cfg.endpoint)
	if err != nil {
		return nil, err
	}
	if cfg.gatewaySocket != "" {
		gateway, err := nodeserver.ListenForGroup(cfg.gatewaySocket, int(cfg.GatewayUID))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("--gateway-socket: %w", err), local.Close())
		}
		go func() { served <- server.ServeGateway(gateway) }()
	}
	go func() { served <- server.Serve(local) }()
	return served, nil
}

// serveMetrics serves them on --metrics-socket until stop is called. The gateway reads
// them, too, if there is one.
func serveMetrics(cfg config, m *metrics.Metrics, server *nodeserver.Server) (stop func(context.Context) error, err error) {
	if cfg.metricsSocket == "" {
		return func(context.Context) error { return nil }, nil
	}
	var l net.Listener
	if cfg.GatewayUID == 0 {
		l, err = nodeserver.Listen(cfg.metricsSocket)
	} else {
		l, err = nodeserver.ListenForGroup(cfg.metricsSocket, int(cfg.GatewayUID))
	}
	if err != nil {
		return nil, fmt.Errorf("--metrics-socket: %w", err)
	}
	serving := metrics.Serving{Ready: server.Ready}
	if cfg.pprof {
		serving.Profiles = nodeserver.IsRoot // the gateway may connect, too
	}
	return m.Serve(l, serving), nil
}
