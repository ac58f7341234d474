package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/why"
	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

func all[T any](stream grpc.ServerStreamingClient[T], err error) (received []*T, _ error) {
	if err != nil {
		return nil, err
	}
	for {
		one, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return received, nil
		case err != nil:
			return nil, err
		}
		received = append(received, one)
	}
}

type listing struct {
	volumes []*adminpb.Volume
	// unlisted is why some volumes may be missing; nil: none is.
	unlisted error
	// note says that the node checks nothing by itself; empty while it does.
	note string
}

func listVolumes(ctx context.Context, client adminpb.AdminClient) (l listing, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := client.ListVolumes(ctx, &adminpb.ListVolumesRequest{})
	if l.volumes, err = all(stream, err); err != nil {
		return l, err
	}
	if lacks := stream.Trailer().Get(adminpb.TrailerUnlisted); len(lacks) > 0 {
		l.unlisted = status.Error(codes.Unknown, "some volumes may be missing: "+strings.Join(lacks, "; "))
	}
	if len(stream.Trailer().Get(adminpb.TrailerLoopOff)) > 0 {
		l.note = "the node's own loop is off (--loop): health is what a call showed last\n"
	}
	return l, nil
}

// completionTimeout is how long a shell waits for names.
const completionTimeout = 2 * time.Second

// plainName is a name in which a shell, which is root's, finds nothing to run or to expand: the
// scripts that ask for completions pass them to compgen -W.
var plainName = regexp.MustCompile(`^[A-Za-z0-9._/:@=+-]+$`)

// volumeNames completes what a volume of this node may be called; nothing without a server.
func volumeNames(dial dialer) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) (fit []string, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
		defer cancel()
		_ = dial(func(client adminpb.AdminClient) error {
			list, err := listVolumes(ctx, client)
			for _, v := range list.volumes {
				for _, name := range append([]string{v.GetVolumeId(), v.GetPv(), v.GetClaim()}, v.GetPods()...) {
					if plainName.MatchString(name) && strings.HasPrefix(name, begun) && !slices.Contains(fit, name) {
						fit = append(fit, name)
					}
				}
			}
			return err
		})
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

// watchGap is the time between two looks of watch.
const watchGap = time.Second

func newWatch(dial dialer) *cobra.Command {
	return &cobra.Command{
		Use: "watch", Short: "Print what checks and heals show, the node's own and others', whenever that changes, until interrupted", Args: takes(0),
		RunE: func(c *cobra.Command, _ []string) error {
			return dial(func(client adminpb.AdminClient) error {
				said, note := map[string]string{}, ""
				err := wait.PollUntilContextCancel(c.Context(), watchGap, true, func(ctx context.Context) (done bool, _ error) {
					list, err := listVolumes(ctx, client)
					if err != nil {
						return false, err
					}
					if note != list.note {
						note = list.note
						_, _ = fmt.Fprint(c.ErrOrStderr(), note)
					}
					return false, printChanges(c.OutOrStdout(), list, said)
				})
				if c.Context().Err() != nil {
					return nil // interrupted
				}
				return err
			})
		},
	}
}

// printChanges prints a line for each volume of which another one was said before, by driver and
// ID, then one for each that is there no more, if these are all that there are: what was said of it
// last is not so any longer.
func printChanges(w io.Writer, list listing, said map[string]string) (err error) {
	say := func(of, says, verdict string) {
		line := printable.Line(time.Now().Format(time.TimeOnly)+"  "+of+"  "+says, maxCellBytes)
		_, failed := fmt.Fprintln(w, painted(w, verdict, line))
		err = cmp.Or(err, failed)
	}
	now := map[string]string{}
	for _, v := range list.volumes {
		of := v.GetDriver() + "  " + v.GetVolumeId()
		if now[of] = why.Health(v); said[of] != now[of] {
			say(of, now[of], v.GetVerdict())
		}
	}
	for _, of := range slices.Sorted(maps.Keys(said)) {
		if _, listed := now[of]; !listed && list.unlisted == nil {
			delete(said, of)
			say(of, "no longer listed", "")
		}
	}
	maps.Copy(said, now)
	return err
}
