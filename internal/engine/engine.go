package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/internal/wanted"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Node is what the engine needs of its host; *node.Node is the real one, and says what each call does.
type Node interface {
	Mounts() (node.Table, error)
	Topology() (node.Table, error)
	Refresh(stack []facts.Mount) ([]facts.Mount, bool)
	Inspect(ctx context.Context, q node.InspectQuery) (node.Inspection, error)
	TryWrite(ctx context.Context, m facts.Mount, onlySync bool) (facts.Write, error)
	LookUp(ctx context.Context, m facts.Mount) (facts.Lookup, error)
	BlockDevice(dev facts.Dev) facts.BlockDevice
	FilesystemErrors(fsType, device string) *facts.FilesystemErrors
	wanted.Finder
	InContainers(ctx context.Context, pods []string, q facts.Filter, before bool) (node.Containers, error)
	ProbeInContainers(ctx context.Context, mounts []facts.ContainerMount) ([]facts.ContainerProbe, error)
	InPods(ctx context.Context) ([]facts.Container, error)
	Kubelet() layout.Kubelet
	RealPath(path string) string
	BootID() string
	BootTime() time.Time
}

// Records keeps the records of volumes.
type Records interface {
	// Load returns nil without an error when there is no usable record.
	Load(driver, volumeID string) (*healer.Record, error)
	Save(r healer.Record) error
}

// Audit keeps the log of every mutating operation.
type Audit interface {
	// Several entries are one write.
	Before(e ...healer.AuditEntry) error
	After(e ...healer.AuditEntry) error
}

// Settings are what whoever runs an engine decides; docs/flags.md says what most mean.
type Settings struct {
	// Drivers are those whose volumes are served; empty: all.
	Drivers []string
	// CheckOnly stops every call before its first step, and writes nothing.
	CheckOnly bool
	// DryRun stops every call before its first step.
	DryRun bool
	// Standalone searches all containers, of pods and of none.
	Standalone bool
	// NoWrite has no write tried, also where only one would tell whether the volume can be written to.
	NoWrite bool
	// LookupInterval is how often a FUSE daemon is asked for a name that cannot exist while
	// nothing calls for that; 0: never.
	LookupInterval time.Duration
	// NoLookup has the drivers whose daemons are never asked for such a name.
	NoLookup []string
	// HealTimeout bounds the work on one volume, whatever the caller's deadline.
	HealTimeout time.Duration
}

// Config is what an engine is made of.
type Config struct {
	Settings
	Node      Node
	Providers []healer.Provider
	Gate      healer.Gate
	Records   Records
	Audit     Audit
	// SyncExt4 is true where the kernel does not say that an ext4 has shut itself down.
	SyncExt4 bool
	// CollectTimeout bounds what providers ask for themselves in one observation.
	CollectTimeout time.Duration
}

// Engine takes a volume from a request to a proven answer.
type Engine struct {
	cfg     Config
	locks   *volumeLocks
	scanned *scannedVolumes
	// lookups has the last Lookup of each FUSE superblock, by its device.
	lookups *lru.Cache
	// late has the questions of calls of a provider's Collect that have outlived their deadlines, by the
	// channel that gets the answer.
	late sync.Map

	mu      sync.Mutex // held while a call looks at closing and adds itself to running
	closing bool
	running sync.WaitGroup
	// life ends when running work must end now.
	life  context.Context
	abort context.CancelFunc
}

// abortTime is how long aborted work may take to end: a worker is killed.
const abortTime = 3 * time.Second

// New checks cfg and returns an engine.
func New(cfg Config) (*Engine, error) {
	switch {
	case cfg.Node == nil || cfg.Gate == nil || cfg.Records == nil || cfg.Audit == nil:
		return nil, errors.New("engine: node, gate, records and audit are required")
	case len(cfg.Providers) == 0:
		return nil, errors.New("engine: no providers")
	case cfg.HealTimeout <= 0 || cfg.CollectTimeout <= 0:
		return nil, errors.New("engine: the timeouts must be positive")
	}
	e := &Engine{cfg: cfg, locks: &volumeLocks{}, scanned: newScannedVolumes(), lookups: lru.New(maxLookups)}
	e.life, e.abort = context.WithCancel(context.Background())
	return e, nil
}

func (e *Engine) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return false
	}
	e.running.Add(1)
	return true
}

// Close waits until running work ends. New calls and new steps are refused from now
// on. When ctx ends first, the workers are killed: a step that is killed at any instant
// leaves a state from which the next call heals.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()
	defer e.abort()
	idle := make(chan struct{})
	go func() { // it may outlive Close, as the work that it waits for
		e.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	e.abort()
	select {
	case <-idle:
		return fmt.Errorf("work on volumes was cut off: %w", ctx.Err())
	case <-time.After(abortTime):
		return fmt.Errorf("work on volumes goes on: %w", ctx.Err())
	}
}

func (e *Engine) isClosing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closing
}

// stuckIn returns a channel for each worker that steps left behind. It may still act, so no other step
// acts beside it.
func stuckIn(steps []healer.Outcome) (workers []<-chan struct{}) {
	for _, o := range steps {
		workers = append(workers, stuckBehind(o.Err)...)
	}
	return workers
}

// stuckBehind returns a channel for each worker behind an error that could not be killed. The
// channel closes when the worker ends; until then it may still change the volume.
func stuckBehind(err error) []<-chan struct{} {
	if stuck, is := err.(interface{ Ended() <-chan struct{} }); is { //nolint:errorlint // the walk is below
		return []<-chan struct{}{stuck.Ended()}
	}
	var found []<-chan struct{}
	switch e := err.(type) { //nolint:errorlint // a walk over the whole tree: errors.As stops at the first
	case interface{ Unwrap() error }:
		found = stuckBehind(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			found = append(found, stuckBehind(one)...)
		}
	}
	return found
}
