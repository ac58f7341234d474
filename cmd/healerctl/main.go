// Command healerctl shows and heals the volumes of the node that it runs on.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/why"
	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

// version is set by the Makefile.
var version = "unknown"

// The exit codes. They are part of the interface: docs/healerctl.md.
const (
	exitAbnormal = 1
	exitUsage    = 2
	exitNotFound = 3
	exitNoAnswer = 4
	// exitNotJudged is of a volume with which nothing is known to be wrong, and of which not
	// all could be judged.
	exitNotJudged = 5
)

// exitCodes is in every help text, and in docs/healerctl.md.
const exitCodes = `Exit codes:
  0  done; of check and heal: the volume is healthy
  1  the volume is abnormal; of doctor: something is missing
  2  wrong usage, an unknown REASON, or a request that the server does not take
  3  no such volume on this node, or no such claim
  4  no answer: no server, refused, busy, interrupted, or it could not tell
  5  nothing is known to be wrong, and a path could not be judged`

// maxErrorBytes bounds the text of an error.
const maxErrorBytes = 2048

// outcome is the exit code of an answer that has been printed, and no failure.
type outcome int

func (o outcome) Error() string { return fmt.Sprintf("exit code %d", int(o)) }

// plugin is the program's name as one of kubectl's, which then calls it as
// kubectl volume-heal.
const plugin = "kubectl-volume_heal"

func main() {
	why.Worker(lookAtKubelet, lookAtState)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code. The first argument is the program's name.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(strings.HasPrefix(filepath.Base(args[0]), plugin)) //nolint:contextcheck // the commands get ctx from ExecuteContext
	began := false
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	root.SetArgs(args[1:])
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if code := outcome(0); err != nil && !errors.As(err, &code) {
		_, _ = fmt.Fprintln(stderr, root.DisplayName()+": "+printable.Line(wording(err), maxErrorBytes))
	}
	return exitCode(err, began)
}

// usage returns an error of whoever typed the command.
func usage(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// takes has a command take so many arguments: cobra's own words name neither them nor the command.
func takes(arguments int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == arguments {
			return nil
		}
		return usage("the command is: %s", c.UseLine())
	}
}

// wording returns what a person reads of an error.
func wording(err error) string {
	s := status.Convert(err)
	if s.Code() == codes.Unimplemented && len(s.Details()) == 0 {
		return "the server does not know this command: it is of another version, or another program (--endpoint)"
	}
	return strings.Join(strings.Fields(s.Message()), " ") // cobra puts what was meant on lines of its own
}

// exitCode returns the code for an error of a command that began, or of cobra before it did.
func exitCode(err error, began bool) int {
	var code outcome
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case !began:
		return exitUsage
	}
	switch status.Code(err) {
	case codes.NotFound:
		return exitNotFound
	case codes.InvalidArgument:
		return exitUsage
	default:
		return exitNoAnswer
	}
}

func newRoot(isPlugin bool) *cobra.Command {
	var endpoint string
	root := &cobra.Command{
		Use:           "healerctl",
		Short:         "Show and heal volumes: of this node, or of claims",
		Long:          "healerctl shows and heals the volumes of the node that it runs on, for which it needs root, or those of claims, for which it needs a kubeconfig.\n\n" + exitCodes,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	if isPlugin {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl volume-heal"}
		root.Short, root.Long = "Show and heal the volumes of claims", "Shows and heals the volumes of claims.\n\n"+exitCodes
		none := func(func(adminpb.AdminClient) error) error {
			return usage("name a claim: pvc/NAME; volume IDs are for healerctl on a node")
		}
		add(root, newList(nil), newCheck(none, false), newCheck(none, true), newWhy(nil), newExplain(none))
		return root
	}
	root.PersistentFlags().StringVar(&endpoint, "endpoint", "unix:///run/csi-addons/csi-addons.sock", "where the server listens: `unix:///PATH`")
	dial := func(call func(adminpb.AdminClient) error) error {
		path, err := reach(endpoint)
		if err != nil {
			return err
		}
		target := url.URL{Scheme: "unix", Path: path} // a path may hold % and ?
		conn, err := grpc.NewClient(target.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return usage("--endpoint: %v", err)
		}
		defer func() { _ = conn.Close() }()
		err = call(adminpb.NewAdminClient(conn))
		if s := status.Convert(err); (s.Code() == codes.Unavailable || s.Code() == codes.DeadlineExceeded) && len(s.Details()) == 0 { // gRPC's own
			err = status.Error(s.Code(), "the server does not answer, or has ended meanwhile: see the log of node-healer's pod")
		}
		return err
	}
	add(root, newList(dial), newCheck(dial, false), newCheck(dial, true), newWhy(dial), newAudit(dial), newWatch(dial), newStatus(dial), newDoctor(dial), newExplain(dial))
	return root
}

// reach returns the path of an endpoint if somebody listens there, and if not, says why in words:
// gRPC's own have the layers in which it met the error.
func reach(endpoint string) (path string, _ error) {
	path, isUnix := strings.CutPrefix(endpoint, "unix://")
	if !isUnix || !filepath.IsAbs(path) {
		return "", usage("--endpoint: %q is not unix:///PATH", endpoint)
	}
	conn, err := net.DialTimeout("unix", path, reachTimeout)
	if err == nil {
		return path, conn.Close()
	}
	why := "node-healer does not answer at " + path + ": " + err.Error()
	switch {
	case errors.Is(err, fs.ErrPermission):
		why = "only root may connect to " + path + ": run healerctl as root"
	case errors.Is(err, fs.ErrNotExist):
		why = "there is no " + path + ": run healerctl on the node, or in node-healer's pod there (kubectl exec); another path is for --endpoint, and volumes of claims are pvc/NAME"
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "nobody listens at " + path + ": node-healer does not run; see its pod's log"
	}
	return "", status.Error(codes.Unavailable, why)
}

// reachTimeout is how long a server may take to accept a connection.
const reachTimeout = 5 * time.Second

// add adds commands. No argument of any is a file, which completion would offer.
func add(root *cobra.Command, commands ...*cobra.Command) {
	for _, c := range commands {
		if c.ValidArgsFunction == nil {
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
		root.AddCommand(c)
	}
}
