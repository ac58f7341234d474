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

// Parse reads the arguments without the program's name. Usage and flag errors go to out.
func Parse(f *flag.FlagSet, args []string, out io.Writer) error {
	f.SetOutput(out)
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: everything is a flag", f.Arg(0))
	}
	return nil
}

// SetVerbosity sets klog's -v.
func SetVerbosity(v int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	klog.InitFlags(flags)
	return flags.Set("v", strconv.Itoa(v))
}
