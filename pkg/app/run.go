package app

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/loop"
	"github.com/csi-addons/node-healer/internal/setup"
	"github.com/csi-addons/node-healer/pkg/healer"
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
	counts, err := newMetrics(cfg.Version, parts)
	if err != nil {
		return err
	}
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
	loop, err = newLoop(cfg, parts.Node, counted, counts, cluster, server)
	if err != nil {
		return err
	}
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
