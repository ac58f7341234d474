// Package setup makes the parts of a healer and closes them in the order of use, for the
// program (package app) and for a driver's own process (package nodehealer).
package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/engine"
	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/internal/privilege"
	"github.com/csi-addons/node-healer/internal/state"
	"github.com/csi-addons/node-healer/internal/wanted"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider"
	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// BriefTimeout bounds a stage of a shutdown whose end nothing depends on.
const BriefTimeout = 5 * time.Second

const (
	// stopTimeout bounds each other stage of a shutdown. Together they stay below the
	// manifest's grace period.
	stopTimeout = 15 * time.Second
	// answerTimeout bounds the stage in which the last answers are sent. Idle streams, of reflection
	// and health, use all of it.
	answerTimeout = time.Second
	// maxWorkers bounds the workers alive at once, idleWorkers those kept for the next
	// call, of which all but one end when nothing needed them for one to two workersLinger.
	maxWorkers    = 256
	idleWorkers   = 2
	workersLinger = 10 * time.Second
	// growAfter is how long a call waits for a worker before one more starts.
	growAfter = 5 * time.Millisecond
	// killWait is how long a killed worker may take to end. Meanwhile a busy node may keep it from a
	// processor for a second: its storage would pass for hung.
	killWait = 2 * time.Second
	// workerGC keeps a worker's heap at the little it needs: 1 MiB and not 4.
	workerGC = "GOGC=25"
	// stepShare is the part of the heal timeout that one half of a step may use.
	stepShare = 4
)

// The defaults of the flags of the same names, and of a driver's own process.
const (
	DefaultKubeletRoot   = "/var/lib/kubelet"
	DefaultProbeTimeout  = 5 * time.Second
	DefaultHealTimeout   = 2 * time.Minute
	DefaultDriverTimeout = 2 * time.Minute
	DefaultDriverGrace   = 5 * time.Minute
	DefaultPodNamespace  = "csi-addons-node-healer"
	DefaultConfigMap     = "node-healer"
	// SlowShare is the part of the probe timeout after which an answer is late.
	SlowShare = 5
)

// Config is what the parts are made of, checked; docs/flags.md says what most fields mean.
type Config struct {
	engine.Settings
	// Name is what Identity answers.
	Name, Version string
	KubeletRoot   string
	PathRoots     []string
	StateDir      string
	HostNamespace string
	// Off has no call answered.
	Off            bool
	ProbeTimeout   time.Duration
	SlowAnswer     time.Duration
	HealContainers containers.Scope
	FUSEAbort      bool
	// DisabledProviders are not asked.
	DisabledProviders []string
	DriverTimeout     time.Duration
	// CSISockets are paths by the name of the driver.
	CSISockets  map[string]string
	AllowedUIDs []uint32
	// GatewayUID is the gateway's user; 0: there is no gateway.
	GatewayUID uint32

	// Providers are asked beside those of this module.
	Providers []func(healer.Tools) healer.Provider
	// MayCall is that of nodeserver.Config.
	MayCall func(context.Context) (string, error)
	// OwnWorker is true for a program that begins with MaybeWorker, and so is its own worker.
	OwnWorker bool
}

// Parts are the open parts of a healer. Close ends them.
type Parts struct {
	cfg     Config
	began   time.Time
	Node    *node.Node
	Workers *worker.Pool

	// more are Config.Providers.
	more []healer.Provider
	// providers are the names of those that are asked.
	providers []string
	namespace *node.Namespace
	records   *state.Records
	audit     *state.Audit
	engine    *engine.Engine
	server    *nodeserver.Server
	// closers are called from last to first.
	closers []func(context.Context) error
}

// Open opens the state directory and the host's mount namespace, and makes what runs in
// workers.
func Open(ctx context.Context, cfg Config) (_ *Parts, err error) {
	p := &Parts{cfg: cfg, began: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close(ctx))
		}
	}()
	dir, err := state.Open(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	p.onClose(dir)
	p.records = dir.Records()
	p.OnStop(BriefTimeout, Background(context.WithoutCancel(ctx), "old records are still removed", p.records.Prune))
	p.audit = dir.Audit()
	if p.namespace, err = node.OpenNamespace(cfg.HostNamespace, append([]string{cfg.KubeletRoot}, cfg.PathRoots...)); err != nil {
		return nil, engine.ExplainPermission("a start", cfg.HostNamespace, err, privilege.Own)
	}
	p.onClose(p.namespace)
	if p.Workers, err = newPool(cfg, p.namespace); err != nil {
		return nil, err
	}
	p.OnStop(stopTimeout, p.Workers.Close)
	p.Node, err = node.New(node.Config{
		Pool:         p.Workers,
		Namespace:    p.namespace,
		KubeletRoot:  cfg.KubeletRoot,
		ProbeTimeout: cfg.ProbeTimeout,
		StepTimeout:  cfg.HealTimeout / stepShare,
		SlowAnswer:   cfg.SlowAnswer,
		Sysfs:        "/sys",
	})
	if err != nil {
		return nil, err
	}
	for _, newProvider := range cfg.Providers {
		p.more = append(p.more, newProvider(engine.NewTools(p.Node)))
	}
	return p, nil
}

func newPool(cfg Config, namespace *node.Namespace) (*worker.Pool, error) {
	binary, args := ownProgram, []string{workerName}
	if !cfg.OwnWorker {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the worker program: %w", err)
		}
		binary, args = filepath.Join(filepath.Dir(self), workerName), nil
		if _, err := os.Stat(binary); err != nil {
			return nil, fmt.Errorf("the worker program, cmd/node-healer-worker of the same version, has to be beside this one: %w", err)
		}
	}
	return worker.NewPool(worker.Config{
		Binary:    binary,
		Args:      args,
		Namespace: namespace.File(),
		Env:       workerEnv(),
		Max:       maxWorkers,
		Idle:      idleWorkers,
		Linger:    workersLinger,
		Grow:      growAfter,
		KillWait:  killWait,
		Abandoned: func(op string, total int) {
			klog.InfoS("A worker cannot be ended: it waits uninterruptibly in the kernel", "operation", op, "abandoned", total)
		},
	}), nil
}

// NewEngine makes the providers and the engine, which Close ends. With no stager no driver is
// asked: this process is the driver. A cluster is followed from now on.
func (p *Parts) NewEngine(ctx context.Context, c *cluster.Cluster, stager driver.Stager) (*engine.Engine, error) {
	providers, err := provider.New(provider.Config{
		Driver: driver.Config{
			KubeletRoot: p.cfg.KubeletRoot, RealRoot: p.Node.Kubelet().Root, Sockets: p.cfg.CSISockets, StepTimeout: p.cfg.HealTimeout / stepShare,
			DriverTimeout: min(p.cfg.DriverTimeout, p.cfg.HealTimeout-p.cfg.HealTimeout/stepShare), Stager: stager,
		},
		Tools: engine.NewTools(p.Node), Node: p.Node, Scope: p.cfg.HealContainers, FUSEAbort: p.cfg.FUSEAbort,
		More: p.more, Disabled: p.cfg.DisabledProviders,
	})
	if err != nil {
		return nil, err
	}
	for _, one := range providers {
		p.providers = append(p.providers, one.Name())
	}
	var gate healer.Gate = wanted.Gate{Node: p.Node, Standalone: p.cfg.Standalone}
	if c != nil {
		gate = c
		// It outlives ctx, as the last heals still ask the API; and stops late where client-go's
		// informers sleep between two attempts.
		p.OnStop(BriefTimeout, Background(context.WithoutCancel(ctx), "the Kubernetes API is still followed", c.Run))
	}
	p.engine, err = engine.New(engine.Config{
		Settings:       p.cfg.Settings,
		Node:           p.Node,
		Providers:      providers,
		Gate:           gate,
		Records:        p.records,
		Audit:          p.audit,
		SyncExt4:       !node.TellsShutdown(),
		CollectTimeout: p.cfg.ProbeTimeout,
	})
	return p.engine, err
}

// NewServer makes the server, which Close ends. It calls h, which is the engine or counts what
// the engine does.
func (p *Parts) NewServer(h healer.Engine, c *cluster.Cluster, states func(context.Context) healer.LoopState) (_ *nodeserver.Server, err error) {
	driver := "" // unless a single one is served
	if len(p.cfg.Drivers) == 1 {
		driver = p.cfg.Drivers[0]
	}
	var roots []string
	for configured, resolved := range p.namespace.RealRoots() {
		roots = append(roots, configured, resolved)
	}
	var onReport func(healer.Report, func(healer.Report) string)
	var names func(context.Context, facts.VolumePath) (claim, pod string)
	if c != nil {
		onReport, names = c.Note, c.Names
	}
	p.server, err = nodeserver.New(nodeserver.Config{
		Healer:      h,
		Volumes:     p.Node,
		Names:       names,
		States:      states,
		Status:      func(ctx context.Context) []nodeserver.StatusLine { return p.status(ctx, c, states) },
		Audit:       p.audit,
		Driver:      driver,
		Name:        p.cfg.Name,
		Version:     p.cfg.Version,
		Off:         p.cfg.Off,
		Standalone:  p.cfg.Standalone,
		Roots:       roots,
		AllowedUIDs: p.cfg.AllowedUIDs,
		GatewayUID:  p.cfg.GatewayUID,
		OnReport:    onReport,
		Explained:   healer.Explained(p.more),
		MayCall:     p.cfg.MayCall,
	})
	return p.server, err
}

// Background has run run until ctx ends or stop is called, which waits for its end; late says what
// goes on if that takes too long.
func Background(ctx context.Context, late string, run func(context.Context)) (stop func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	return func(ctx context.Context) error {
		cancel()
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", late, ctx.Err())
		}
	}
}

// OnStop has Close call stop before it closes what was opened until now.
func (p *Parts) OnStop(within time.Duration, stop func(context.Context) error) {
	p.closers = append(p.closers, func(ctx context.Context) error {
		stopWithin(ctx, within, stop)
		return nil
	})
}

func (p *Parts) onClose(c io.Closer) {
	p.closers = append(p.closers, func(context.Context) error { return c.Close() })
}

// Close stops the engine and what stop stops side by side: they take no new calls, begin no new
// steps and no new checks. Then it stops the server, which has sent the last answers by then, and
// closes what these use: the API, workers, files. Each stage is bounded; ctx may have ended.
func (p *Parts) Close(ctx context.Context, stop ...func(context.Context) error) error {
	if p.server != nil {
		p.server.Drain()
	}
	if p.engine != nil {
		stop = append(stop, p.engine.Close)
	}
	var stopping sync.WaitGroup
	for _, s := range stop {
		stopping.Go(func() { stopWithin(ctx, stopTimeout, s) })
	}
	stopping.Wait()
	if p.server != nil {
		stopWithin(ctx, answerTimeout, p.server.Stop)
	}
	var errs []error
	for _, c := range slices.Backward(p.closers) {
		errs = append(errs, c(ctx))
	}
	return errors.Join(errs...)
}

// stopWithin runs a stage of the shutdown under its deadline. ctx may have ended by then; only
// its values are used. What did not end in time is logged: that is no failure of the server, which
// was told to stop.
func stopWithin(ctx context.Context, d time.Duration, stop func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d)
	defer cancel()
	if err := stop(ctx); err != nil {
		klog.ErrorS(err, "Stopped before everything had ended")
	}
}
