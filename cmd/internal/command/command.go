// Package command has what the main functions of the commands share.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"k8s.io/klog/v2"
)

// Main parses the arguments and calls run, whose context ends with SIGTERM or SIGINT. It
// exits with 2 after a mistake on the command line and with 1 after another error.
func Main[C any](name string, parse func(args []string, out io.Writer) (C, error), run func(context.Context, C) error) {
	cfg, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	exitCode := 2
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		err = run(ctx, cfg)
		stop()
		klog.Flush()
		exitCode = 1
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(exitCode)
	}
}

// SetVerbosity sets klog's -v.
func SetVerbosity(v int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	klog.InitFlags(flags)
	return flags.Set("v", strconv.Itoa(v))
}
