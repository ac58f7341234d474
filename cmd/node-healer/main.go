// node-healer serves the CSI-Addons Healer operation for the volumes of one
// node. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// version is set by the linker.
var version = "unknown"

// gcPercent starts a collection when the heap is half as large again as what is in
// use: the server runs on every node, and its calls make little garbage.
const gcPercent = 50

func main() {
	cfg, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		fmt.Fprintln(os.Stderr, "node-healer:", err)
		os.Exit(2)
	case cfg.version:
		fmt.Println("node-healer", version)
		return
	case cfg.probe:
		os.Exit(probe(cfg.endpoint))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	debug.SetGCPercent(gcPercent)
	startThreads()
	err = errors.Join(setVerbosity(cfg.verbosity), keepMemoryPrivate(), keepFilesPrivate())
	if err == nil {
		err = run(ctx, cfg)
	}
	klog.Flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, "node-healer:", err)
		stop()
		os.Exit(1)
	}
}

func setVerbosity(v int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	klog.InitFlags(flags)
	return flags.Set("v", strconv.Itoa(v))
}

// keepMemoryPrivate keeps the secrets of requests out of core dumps and away from
// debuggers of other users.
func keepMemoryPrivate() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_DUMPABLE): %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
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
