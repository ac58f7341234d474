package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/printable"
)

// all receives a stream to its end.
func all[T any](stream grpc.ServerStreamingClient[T], err error) (received []*T, _ error) {
	if err != nil {
		return nil, callError{err}
	}
	for {
		one, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return received, nil
		case err != nil:
			return nil, callError{err}
		}
		received = append(received, one)
	}
}

func newHolders(dial dialer) *cobra.Command {
	var driver string
	c := &cobra.Command{Use: "holders VOLUME-ID", Short: "Say who holds what is mounted of a volume", Args: cobra.ExactArgs(1)}
	c.Flags().StringVar(&driver, "driver", "", "the CSI driver, where several have a volume of this ID")
	c.RunE = func(c *cobra.Command, args []string) error {
		return dial(func(client adminpb.AdminClient) error {
			held, err := client.ListHolders(c.Context(), &adminpb.ListHoldersRequest{VolumeId: args[0], Driver: driver})
			if err != nil {
				return callError{err}
			}
			for _, line := range held.GetFilesystems() {
				if _, err := fmt.Fprintln(c.OutOrStdout(), printable.Line(line, maxCellBytes)); err != nil {
					return callError{err}
				}
			}
			return nil
		})
	}
	return c
}

// watchGap is the time between two looks of watch.
const watchGap = time.Second

func newWatch(dial dialer) *cobra.Command {
	return &cobra.Command{
		Use: "watch", Short: "Print what the node's own loop sees, whenever that changes, until interrupted", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return dial(func(client adminpb.AdminClient) error {
				said := map[string]string{}
				for {
					volumes, err := all(client.ListVolumes(c.Context(), &adminpb.ListVolumesRequest{}))
					switch {
					case c.Context().Err() != nil:
						return nil // interrupted
					case err != nil:
						return err
					}
					if err := printChanges(c.OutOrStdout(), volumes, said); err != nil {
						return callError{err}
					}
					select {
					case <-time.After(watchGap):
					case <-c.Context().Done():
						return nil
					}
				}
			})
		},
	}
}

// printChanges prints a line for each volume of which another one was said before.
func printChanges(w io.Writer, volumes []*adminpb.Volume, said map[string]string) error {
	for _, v := range volumes {
		key, says := v.GetDriver()+"\x00"+v.GetVolumeId(), health(v)
		if said[key] == says {
			continue
		}
		said[key] = says
		line := printable.Line(fmt.Sprintf("%s  %s  %s  %s", time.Now().Format(time.TimeOnly), v.GetDriver(), v.GetVolumeId(), says), maxCellBytes)
		if _, err := fmt.Fprintln(w, painted(w, v.GetVerdict(), line)); err != nil {
			return err
		}
	}
	return nil
}

// health returns what the loop saw of a volume, in a few words.
func health(v *adminpb.Volume) string {
	says := cmp.Or(v.GetVerdict(), "not checked yet")
	if v.GetVerdict() == "" && len(v.GetReasons()) > 0 {
		says = "no answer"
	}
	if len(v.GetReasons()) > 0 {
		says += ": " + strings.Join(v.GetReasons(), ", ")
	}
	if v.GetLeft() != "" {
		says += " (left alone: " + v.GetLeft() + ")"
	}
	return says
}
