package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

func newAudit(dial dialer) *cobra.Command {
	var output, volume string
	var lines int32
	c := &cobra.Command{Use: "audit", Short: "Show the last heal steps of this node", Args: cobra.NoArgs}
	outputFlag(c, &output)
	c.Flags().StringVar(&volume, "volume", "", "only those of this `VOLUME-ID`")
	c.Flags().Int32VarP(&lines, "lines", "n", 100, "at most so many, 1000 at most")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return dial(func(client adminpb.AdminClient) error {
			log, err := all(client.ReadAudit(c.Context(), &adminpb.ReadAuditRequest{VolumeId: volume, Limit: lines}))
			if err != nil {
				return err
			}
			return printed(printAudit(c.OutOrStdout(), output, log))
		})
	}
	return c
}

func printAudit(w io.Writer, output string, log []*adminpb.AuditLine) error {
	if output != asTable {
		lines := make([]json.RawMessage, 0, len(log))
		for _, line := range log {
			lines = append(lines, json.RawMessage(line.GetJson()))
		}
		return printData(w, output, lines)
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row(table, "TIME", "VOLUME-ID", "STEP", "MOUNT-POINT", "CALLER", "OUTCOME")
	for _, line := range log {
		var e struct {
			Time                                              time.Time
			When, VolumeID, Step, MountPoint, Caller, Outcome string
		}
		if err := json.Unmarshal([]byte(line.GetJson()), &e); err != nil {
			return status.Error(codes.Unknown, "a line of the audit log is no JSON")
		}
		row(table, e.Time.Format(time.RFC3339), e.VolumeID, e.Step, e.MountPoint, e.Caller, cmp.Or(e.Outcome, "begins"))
	}
	return table.Flush()
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
	if len(v.GetReasons()) > 0 {
		says += ": " + strings.Join(v.GetReasons(), ", ")
	}
	if v.GetLeft() != "" {
		says += " (left alone: " + v.GetLeft() + ")"
	}
	return says
}
