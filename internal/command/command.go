// Package command has what the main functions of the commands share.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
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

// Logging is how a program logs.
type Logging struct {
	Verbosity int
	// Format is logText or logJSON.
	Format string
}

const (
	logText = "text"
	logJSON = "json"
)

// maxVerbosity is below the one from which the API's client logs what it sends and reads.
const maxVerbosity = 7

// Add defines the flags.
func (l *Logging) Add(f *flag.FlagSet) {
	f.IntVar(&l.Verbosity, "v", 0, "log verbosity (klog), at most 7")
	f.StringVar(&l.Format, "logging-format", logText, "the log's format: "+logText+" (klog) or "+logJSON+", one object in a line")
}

// Check returns an error where secrets would be in the log, or its format is none.
func (l Logging) Check() error {
	switch {
	case l.Verbosity > maxVerbosity:
		return fmt.Errorf("-v: %d is more than %d: tokens and Secrets would be in the log", l.Verbosity, maxVerbosity)
	case l.Format != logText && l.Format != logJSON:
		return fmt.Errorf("--logging-format: %q is none of %s and %s", l.Format, logText, logJSON)
	}
	return nil
}

// Set has klog log like that. It is called before anything is logged.
func (l Logging) Set() error { return l.set(os.Stderr) }

func (l Logging) set(to io.Writer) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(l.Verbosity)); err != nil {
		return err
	}
	if l.Format == logJSON { // log/slog has -v=4 as level -4
		klog.SetSlogLogger(slog.New(slog.NewJSONHandler(to, &slog.HandlerOptions{Level: slog.Level(-l.Verbosity)})))
	}
	return nil
}
