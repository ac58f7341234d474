// node-healer serves the CSI-Addons Healer operation for the volumes of one
// node. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/cmd/internal/command"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// version is set by the linker.
var version = "unknown"

// gcPercent starts a collection when the heap is a third larger than what is in use:
// the server runs on every node, and its calls make little garbage.
const gcPercent = 35

// maxProcessors bounds for how many processors Go schedules the server, however many the
// node has: its work is in the kernel and in the workers. GOMAXPROCS says otherwise.
const maxProcessors = 2

// probeTimeout is below the timeout of the exec probes in the manifest.
const probeTimeout = 4 * time.Second

// init keeps the main thread for the main goroutine: a thread that entered another mount
// namespace cannot end if it is the main one, and would be what /proc/<pid> shows.
func init() { runtime.LockOSThread() }

func main() { command.Main("node-healer", parse, start) }

// start does what the command line asks for: mostly, to serve until ctx ends.
func start(ctx context.Context, cfg config) error {
	switch {
	case cfg.version:
		fmt.Println("node-healer", version)
		return nil
	case cfg.probe:
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
	if err := errors.Join(command.SetVerbosity(cfg.verbosity), keepMemoryPrivate(), keepFilesPrivate()); err != nil {
		return err
	}
	return run(ctx, cfg)
}

// keepMemoryPrivate keeps the secrets of requests out of core dumps and away from
// debuggers of other users. The limit is one byte, which also keeps a core from a program
// in core_pattern (core(5), do_coredump in the kernel); what workers start inherits it, and
// without CAP_SYS_RESOURCE could not raise it.
func keepMemoryPrivate() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_DUMPABLE): %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("setrlimit(RLIMIT_CORE): %w", err)
	}
	return nil
}

// keepFilesPrivate closes inherited descriptors on exec: one that a parent process
// left open could hold a mount busy in a worker.
func keepFilesPrivate() error {
	err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) { // below Linux 5.11
		return fmt.Errorf("close_range: %w", err)
	}
	return nil
}
