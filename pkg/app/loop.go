package app

import (
	"context"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/loop"
	"github.com/csi-addons/node-healer/internal/metrics"
	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// watchedNode is the node as the loop needs it.
type watchedNode struct{ *node.Node }

// SuperblockEvents implements watch.Node.
func (n watchedNode) SuperblockEvents(ctx context.Context) (loop.Events, error) {
	e, err := n.Node.SuperblockEvents(ctx)
	if err != nil {
		return nil, err // and no nil pointer in an interface
	}
	return e, nil
}

// newLoop returns the node's own loop; nil with --loop=off and --mode=off.
func newLoop(cfg config, host *node.Node, engine metrics.Counting, m *metrics.Metrics, c *cluster.Cluster, server *nodeserver.Server) (*loop.Loop, error) {
	if cfg.loop == cluster.LoopOff || cfg.mode == modeOff {
		return nil, nil //nolint:nilnil // there is none
	}
	action := func() loop.Action { return loop.Action(cfg.loop) }
	if c != nil {
		action = func() loop.Action { return loop.Action(c.Loop(cfg.loop)) }
	}
	loop, err := loop.New(loop.Config{
		Node: watchedNode{host}, Engine: engine, Publish: server.Publish, Drivers: cfg.Drivers, Interval: cfg.checkInterval,
		Action: action, DryRun: cfg.DryRun,
		Recovered: m.Recovered,
	})
	if err != nil {
		return nil, err
	}
	return loop, m.Watch(loop.States)
}
