package main

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

func newAudit(dial dialer) *cobra.Command {
	var request adminpb.ReadAuditRequest
	c := &cobra.Command{Use: "audit", Short: "Show the last heal steps of this node", Args: takes(0)}
	output := outputFlag(c)
	c.Flags().StringVar(&request.VolumeId, "volume", "", "only those of this `VOLUME-ID`")
	c.Flags().Int32VarP(&request.Limit, "lines", "n", 100, "at most so many, 1000 at most")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return dial(func(client adminpb.AdminClient) error {
			ctx, cancel := context.WithTimeout(c.Context(), requestTimeout)
			defer cancel()
			log, err := all(client.ReadAudit(ctx, &request))
			if err != nil {
				return err
			}
			// A line that cannot be read hides no other.
			lines := []any{}
			var t table
			t.row("", "TIME", "VOLUME-ID", "STEP", "MOUNT-POINT", "CALLER", "OUTCOME")
			for _, l := range log {
				var e struct {
					Time                                        time.Time
					VolumeID, Step, MountPoint, Caller, Outcome string
				}
				if err := json.Unmarshal([]byte(l.GetJson()), &e); err != nil {
					t.row("", "", "", "", "", "", "unreadable: "+l.GetJson())
				} else {
					t.row("", e.Time.Format(time.RFC3339), e.VolumeID, e.Step, e.MountPoint, e.Caller, cmp.Or(e.Outcome, "begins"))
				}
				if json.Valid([]byte(l.GetJson())) {
					lines = append(lines, json.RawMessage(l.GetJson()))
				} else {
					lines = append(lines, printable.Line(l.GetJson(), maxCellBytes))
				}
			}
			return answer(c, *output, lines, t.print)
		})
	}
	return c
}
