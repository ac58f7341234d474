package main

import (
	"context"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
	"github.com/csi-addons/node-healer/pkg/policy"
	"github.com/csi-addons/node-healer/pkg/watch"
)

// loopActions are what the values of --loop stand for.
var loopActions = map[string]watch.Action{policy.LoopOff: watch.Off, policy.LoopObserve: watch.Observe, policy.LoopHeal: watch.Heal}

// watchVolumes runs the node's own loop until ctx ends or stop is called, which waits
// for its last checks. With --mode=off there is none.
func watchVolumes(ctx context.Context, cfg config, node *host.Node, engine *healer.Engine, cluster *cluster, server *nodeserver.Server) (stop func(context.Context) error, err error) {
	if cfg.loop == policy.LoopOff || cfg.mode == modeOff {
		return func(context.Context) error { return nil }, nil
	}
	loop, err := watch.New(watch.Config{
		Node: node, Engine: engine, Publish: server.Publish, Drivers: cfg.drivers, Interval: cfg.checkInterval,
		Action: func() watch.Action { return loopActions[cluster.loop(cfg)] }, DryRun: cfg.dryRun,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		loop.Run(ctx)
	}()
	return func(ctx context.Context) error {
		cancel()
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("the loop's checks go on: %w", ctx.Err())
		}
	}, nil
}
