// Package app is the node-healer program for a main function of somebody's own, which adds
// providers: flags, cluster, loop, metrics, all of it. The program
// node-healer-worker of the same version has to be beside it.
package app

import (
	"cmp"
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// gcPercent starts a collection when the heap is a third larger than what is in use:
// the server runs on every node, and its calls make little garbage.
const gcPercent = 35

// maxProcessors bounds for how many processors Go schedules the server, however many the
// node has: its work is in the kernel and in the workers. GOMAXPROCS says otherwise.
const maxProcessors = 2

// probeTimeout is below the timeout of the exec probes in the manifest.
const probeTimeout = 4 * time.Second

// spareThreads is how many threads the server has from the start. The Go runtime ends
// a program that cannot get another thread, as on a node, or in a pod, whose process
// limit is reached; each call that waits for a worker blocks a thread for a moment.
const spareThreads = 24

// Options is what a program that embeds node-healer adds to it.
type Options struct {
	// Name is that of the program in its own messages; empty: node-healer.
	Name string
	// Version is what Identity, metrics and --version answer; empty: unknown.
	Version string
	// Providers are asked beside node-healer's own, right before the one that asks the driver.
	Providers []func(healer.Tools) healer.Provider
}

// Main is the whole life of the program: it reads the command line, serves until SIGTERM or
// SIGINT, and exits with an error's code.
func Main(o Options) {
	o.Name, o.Version = cmp.Or(o.Name, "node-healer"), cmp.Or(o.Version, "unknown")
	command.Main(o.Name, o.Version, parse, func(ctx context.Context, cfg config) error {
		cfg.Version, cfg.Providers = o.Version, o.Providers
		return start(ctx, cfg)
	})
}

// start does what the command line asks for: mostly, to serve until ctx ends.
func start(ctx context.Context, cfg config) error {
	if cfg.probe {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return nodeserver.ProbeSocket(ctx, cfg.endpoint)
	}
	debug.SetGCPercent(gcPercent)
	if !cfg.pprof {
		runtime.MemProfileRate = 0 // what nobody can read is not kept
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(maxProcessors, runtime.GOMAXPROCS(0)))
	}
	startThreads()
	if err := operation.KeepMemoryPrivate(); err != nil {
		return err
	}
	return run(ctx, cfg)
}

// startThreads makes the runtime start the spare threads, which it then keeps.
func startThreads() {
	var all, done sync.WaitGroup
	all.Add(spareThreads)
	for range spareThreads {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		})
	}
	done.Wait()
}
