package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/engine"
	"github.com/csi-addons/node-healer/internal/loop"
	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/internal/state"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

const (
	// stopTimeout bounds each stage of a shutdown, unfollowTimeout the one that only
	// stops watching the API. Together they stay below the manifest's grace period.
	stopTimeout     = 15 * time.Second
	unfollowTimeout = 5 * time.Second
	// maxWorkers bounds the workers alive at once, idleWorkers those kept for the next
	// call.
	maxWorkers  = 256
	idleWorkers = 2
	// growAfter is how long a call waits for a worker before one more starts.
	growAfter = 5 * time.Millisecond
	// killWait is how long a killed worker may take to end.
	killWait = 500 * time.Millisecond
	// workerGC keeps a worker's heap at the little it needs: 1 MiB and not 4.
	workerGC = "GOGC=25"
	// stepShare is the part of the heal timeout that one half of a step may use.
	stepShare = 4
)

// run serves until ctx ends, then closes in the order of use: calls, work on volumes,
// the API, workers, files.
func run(ctx context.Context, cfg config) (err error) {
	defer func() {
		if err == nil {
			klog.InfoS("Stopped")
		}
	}()
	dir, err := state.Open(cfg.stateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	records := dir.Records()
	if err := records.Prune(time.Now()); err != nil {
		klog.ErrorS(err, "Cannot remove old records")
	}
	audit, err := dir.Audit()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, audit.Close()) }()

	namespace, err := node.OpenNamespace(cfg.hostNamespace, append([]string{cfg.kubeletRoot}, cfg.pathRoots...))
	if err != nil {
		return engine.ExplainPermission("a start", cfg.hostNamespace, err, node.OwnPrivileges)
	}
	defer func() { err = errors.Join(err, namespace.Close()) }()
	pool, err := newPool(namespace)
	if err != nil {
		return err
	}
	defer func() { logCut(bounded(ctx, stopTimeout, pool.Close)) }()
	host, err := newNode(cfg, namespace, pool)
	if err != nil {
		return err
	}
	counts, err := newMetrics(pool)
	if err != nil {
		return err
	}
	cluster, err := newCluster(cfg, host)
	if err != nil {
		return err
	}
	providers, err := newProviders(cfg, host, newStager(cfg, cluster))
	if err != nil {
		return err
	}
	unfollow := followCluster(ctx, cluster)
	defer func() { logCut(bounded(ctx, unfollowTimeout, unfollow)) }()
	engine, err := newEngine(cfg, host, providers, cluster, records, audit)
	if err != nil {
		return err
	}
	counted := counts.Counting(engine)
	var loop *loop.Loop // made with the server, and before it serves
	states := func(ctx context.Context) healer.LoopState { return loop.States(ctx) }
	server, err := newServer(cfg, host, cluster, counted, namespace, audit, states)
	if err != nil {
		return err
	}
	loop, err = newLoop(cfg, host, counted, counts, cluster, server)
	if err != nil {
		return err
	}
	served, err := listen(cfg, server)
	if err != nil {
		return err
	}
	unserve, err := serveMetrics(cfg, counts, server)
	if err != nil {
		return err
	}
	defer func() { logCut(bounded(ctx, unfollowTimeout, unserve)) }()
	unwatch := watchVolumes(ctx, loop)
	klog.InfoS("Serving", "endpoint", cfg.endpoint, "gatewaySocket", cfg.gatewaySocket, "name", cfg.name, "drivers", cfg.drivers,
		"node", cfg.nodeID, "mode", cfg.mode, "loop", cfg.loop, "standalone", cfg.standalone, "kubernetes", cluster != nil, "version", version)
	return untilDone(ctx, server, engine, unwatch, served)
}

// bounded runs a stage of the shutdown under its deadline. ctx has ended by then; only
// its values are used.
func bounded(ctx context.Context, d time.Duration, stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d)
	defer cancel()
	return stop(ctx)
}

func newPool(namespace *node.Namespace) (*worker.Pool, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the worker program: %w", err)
	}
	return worker.NewPool(worker.Config{
		Binary:    filepath.Join(filepath.Dir(self), "node-healer-worker"),
		Namespace: namespace.File(),
		Env:       workerEnv(),
		Max:       maxWorkers,
		Idle:      idleWorkers,
		Grow:      growAfter,
		KillWait:  killWait,
		Abandoned: func(op string, total int) {
			klog.InfoS("A worker cannot be ended: it waits uninterruptibly in the kernel", "operation", op, "abandoned", total)
		},
	})
}

func newNode(cfg config, ns *node.Namespace, pool *worker.Pool) (*node.Node, error) {
	return node.New(node.Config{
		Pool:         pool,
		Namespace:    ns,
		KubeletRoot:  cfg.kubeletRoot,
		ProbeTimeout: cfg.probeTimeout,
		StepTimeout:  cfg.healTimeout / stepShare,
		SlowAnswer:   cfg.slowAnswer,
		Sysfs:        "/sys",
	})
}

func newEngine(cfg config, host *node.Node, providers []healer.Provider, c *cluster.Cluster, records *state.Records, audit *state.Audit) (*engine.Engine, error) {
	return engine.New(engine.Config{
		Node:       host,
		Providers:  providers,
		Gate:       newGate(cfg, c, host),
		Records:    records,
		Audit:      audit,
		Drivers:    cfg.drivers,
		CheckOnly:  cfg.mode != modeHeal,
		DryRun:     cfg.dryRun,
		Standalone: cfg.standalone,
		ProbeWrite: engine.WriteProbe(cfg.probeWrite),
		SyncExt4:   !node.TellsShutdown(),
		Timeout:    cfg.healTimeout,

		CollectTimeout: cfg.probeTimeout,
		LookupInterval: cfg.lookupInterval,
		NoLookup:       cfg.noLookup,
	})
}

func newServer(cfg config, host *node.Node, c *cluster.Cluster, engine nodeserver.Healer, ns *node.Namespace, audit *state.Audit, states func(context.Context) healer.LoopState) (*nodeserver.Server, error) {
	var roots []string
	for configured, resolved := range ns.RealRoots() {
		roots = append(roots, configured, resolved)
	}
	var onReport func(healer.Report, func(healer.Report) string)
	if c != nil {
		onReport = c.Note
	}
	return nodeserver.New(nodeserver.Config{
		Healer:      engine,
		Finder:      host,
		Volumes:     host,
		States:      states,
		Audit:       audit,
		Driver:      cfg.onlyDriver(),
		Name:        cfg.name,
		Version:     version,
		Off:         cfg.mode == modeOff,
		Standalone:  cfg.standalone,
		Roots:       roots,
		AllowedUIDs: cfg.allowedUIDs,
		GatewayUID:  uint32(cfg.gatewayUID),
		OnReport:    onReport,
	})
}

// listen serves the callers on this node, and the gateway on a socket of its own, if one
// is configured. Each sends its result to served.
func listen(cfg config, server *nodeserver.Server) (served chan error, err error) {
	served = make(chan error, 2)
	local, err := nodeserver.Listen(cfg.endpoint)
	if err != nil {
		return nil, err
	}
	go func() { served <- server.Serve(local) }()
	if cfg.gatewaySocket == "" {
		return served, nil
	}
	gateway, err := nodeserver.ListenForGroup(cfg.gatewaySocket, int(cfg.gatewayUID))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--gateway-socket: %w", err), local.Close())
	}
	go func() { served <- server.ServeGateway(gateway) }()
	return served, nil
}

// untilDone waits for ctx or a listener to end, then stops server, engine and loop side
// by side: they take no new calls, begin no new steps and no new checks.
func untilDone(ctx context.Context, server *nodeserver.Server, engine *engine.Engine, unwatch func(context.Context) error, served <-chan error) (err error) {
	select {
	case err = <-served:
	case <-ctx.Done():
		klog.InfoS("Stopping: no new calls, running work may end")
	}
	worked, watched := make(chan error, 1), make(chan error, 1)
	go func() { worked <- bounded(ctx, stopTimeout, engine.Close) }()
	go func() { watched <- bounded(ctx, stopTimeout, unwatch) }()
	logCut(errors.Join(bounded(ctx, stopTimeout, server.Stop), <-worked, <-watched))
	return err
}

// logCut logs what did not end in time. That is no failure of the server, which was
// told to stop.
func logCut(err error) {
	if err != nil {
		klog.ErrorS(err, "Stopped before everything had ended")
	}
}
