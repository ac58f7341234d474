package main

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

func newAudit(dial dialer) *cobra.Command {
	var output, volume string
	var lines int32
	c := &cobra.Command{Use: "audit", Short: "Show the last heal steps of this node", Args: cobra.NoArgs}
	outputFlag(c, &output)
	c.Flags().StringVar(&volume, "volume", "", "only those of this `VOLUME-ID`")
	c.Flags().Int32VarP(&lines, "lines", "n", 100, "at most so many, 1000 at most")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return dial(func(client adminpb.AdminClient) error {
			ctx, cancel := context.WithTimeout(c.Context(), requestTimeout)
			defer cancel()
			log, err := all(client.ReadAudit(ctx, &adminpb.ReadAuditRequest{VolumeId: volume, Limit: lines}))
			if err != nil {
				return err
			}
			return printed(printAudit(c.OutOrStdout(), output, log))
		})
	}
	return c
}

// printAudit prints every line: one that cannot be read hides no other.
func printAudit(w io.Writer, output string, log []*adminpb.AuditLine) error {
	if output != asTable {
		lines := make([]any, 0, len(log))
		for _, line := range log {
			lines = append(lines, auditData(line.GetJson()))
		}
		return printData(w, output, lines)
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row(table, "TIME", "VOLUME-ID", "STEP", "MOUNT-POINT", "CALLER", "OUTCOME")
	for _, line := range log {
		row(table, auditCells(line.GetJson())...)
	}
	return table.Flush()
}

// auditData returns a line as it is, or as a text if it is no JSON.
func auditData(line string) any {
	if json.Valid([]byte(line)) {
		return json.RawMessage(line)
	}
	return printable.Line(line, maxCellBytes)
}

func auditCells(line string) []string {
	var e struct {
		Time                                              time.Time
		When, VolumeID, Step, MountPoint, Caller, Outcome string
	}
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		return []string{"", "", "", "", "", "unreadable: " + line}
	}
	return []string{e.Time.Format(time.RFC3339), e.VolumeID, e.Step, e.MountPoint, e.Caller, cmp.Or(e.Outcome, "begins")}
}
