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
func Main[C interface{ setLogging() }](name, version string, parse func(args []string, out io.Writer) (C, error), run func(context.Context, C) error) {
	cfg, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case errors.Is(err, errVersion):
		fmt.Println(name, version)
		return
	}
	exitCode := 2
	if err == nil {
		exitCode = 1
		cfg.setLogging()
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		err = run(ctx, cfg)
		stop()
		klog.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(exitCode)
	}
}

// errVersion is of a command line that asks for the version.
var errVersion = errors.New("the version is asked for")

// Parse reads the arguments without the program's name, and has them checked. Usage and flag
// errors go to out.
func (c *Common) Parse(f *flag.FlagSet, args []string, out io.Writer, check func() error) error {
	f.SetOutput(out)
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: everything is a flag", f.Arg(0))
	}
	if c.version {
		return errVersion
	}
	return errors.Join(check(), c.check())
}

// Common is what all command lines have: how to log, and --version.
type Common struct {
	Verbosity int
	// Format is logText or logJSON.
	Format  string
	version bool
}

const (
	logText = "text"
	logJSON = "json"
)

// maxVerbosity is below the one from which the API's client logs what it sends and reads.
const maxVerbosity = 7

// AddFlags defines them.
func (c *Common) AddFlags(f *flag.FlagSet) {
	f.IntVar(&c.Verbosity, "v", 0, "log verbosity (klog), at most 7")
	f.StringVar(&c.Format, "logging-format", logText, "the log's format: "+logText+" (klog) or "+logJSON+", one object in a line")
	f.BoolVar(&c.version, "version", false, "print the version and exit")
}

// check returns an error where secrets would be in the log, or its format is none.
func (c Common) check() error {
	switch {
	case c.Verbosity > maxVerbosity:
		return fmt.Errorf("-v: %d is more than %d: tokens and Secrets would be in the log", c.Verbosity, maxVerbosity)
	case c.Format != logText && c.Format != logJSON:
		return fmt.Errorf("--logging-format: %q is none of %s and %s", c.Format, logText, logJSON)
	}
	return nil
}

// setLogging has klog log like that. It is called before anything is logged.
func (c Common) setLogging() { c.set(os.Stderr) }

func (c Common) set(to io.Writer) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	klog.InitFlags(flags)
	_ = flags.Set("v", strconv.Itoa(c.Verbosity))
	if c.Format == logJSON { // log/slog has -v=4 as level -4
		klog.SetSlogLogger(slog.New(slog.NewJSONHandler(to, &slog.HandlerOptions{Level: slog.Level(-c.Verbosity)})))
	}
}
