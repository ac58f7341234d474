// Command healerctl shows and heals the volumes of the node that it runs on.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/printable"
)

// version is set by the Makefile.
var version = "unknown"

// The exit codes. They are part of the interface: docs/healerctl.md.
const (
	exitAbnormal = 1
	exitUsage    = 2
	exitNotFound = 3
	exitNoAnswer = 4
)

// exitCodes is in every help text, and in docs/healerctl.md.
const exitCodes = `Exit codes:
  0  done; of check and heal: the volume is healthy
  1  the volume is abnormal
  2  wrong usage, or a request that the server does not take
  3  no such volume on this node
  4  no answer: no server, refused, busy, or it could not tell`

// maxErrorBytes bounds the text of an error.
const maxErrorBytes = 2048

// errAbnormal is no failure: the answer has been printed.
var errAbnormal = errors.New("the volume is abnormal")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot() //nolint:contextcheck // the commands get ctx from ExecuteContext
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, errAbnormal) {
		text := err.Error()
		if call := (callError{}); errors.As(err, &call) {
			text = status.Convert(call.error).Message()
		}
		_, _ = fmt.Fprintln(stderr, "healerctl: "+printable.Line(text, maxErrorBytes))
	}
	return exitCode(err)
}

// callError is an error that a command got after its arguments were accepted.
type callError struct{ error }

func (e callError) Unwrap() error { return e.error }

func exitCode(err error) int {
	var call callError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errAbnormal):
		return exitAbnormal
	case !errors.As(err, &call):
		return exitUsage // cobra's own errors
	}
	switch status.Code(call.error) {
	case codes.NotFound:
		return exitNotFound
	case codes.InvalidArgument:
		return exitUsage
	default:
		return exitNoAnswer
	}
}

func newRoot() *cobra.Command {
	var endpoint string
	root := &cobra.Command{
		Use:           "healerctl",
		Short:         "Show and heal the volumes of this node",
		Long:          "healerctl shows and heals the volumes of the node that it runs on. It needs root.\n\n" + exitCodes,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().StringVar(&endpoint, "endpoint", "unix:///run/csi-addons/csi-addons.sock", "where the server listens: `unix:///PATH`")
	dial := func(call func(adminpb.AdminClient) error) error {
		conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err // a wrong --endpoint
		}
		err = call(adminpb.NewAdminClient(conn))
		if closed := conn.Close(); err == nil && closed != nil {
			err = callError{closed}
		}
		return err
	}
	root.AddCommand(newList(dial), newCheck(dial), newHeal(dial), newHolders(dial), newAudit(dial), newWatch(dial), newExplain())
	return root
}
