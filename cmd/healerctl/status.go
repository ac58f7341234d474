package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

func newStatus(dial dialer) *cobra.Command {
	var output string
	c := &cobra.Command{Use: "status", Short: "Show what the server of this node is, may do and has to do", Args: cobra.NoArgs}
	outputFlag(c, &output)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return dial(func(client adminpb.AdminClient) error {
			s, err := askStatus(c.Context(), client)
			if err != nil {
				return err
			}
			s.Lines = append([]*adminpb.StatusLine{{Name: "healerctl", Value: version}}, s.GetLines()...)
			if !isText(output) {
				byName := map[string]string{}
				for _, l := range s.GetLines() {
					byName[l.GetName()] = l.GetValue()
				}
				return printed(printData(c.OutOrStdout(), output, byName))
			}
			var lines []labelled
			for _, l := range s.GetLines() {
				lines = append(lines, labelled{printable.Line(l.GetName(), maxCellBytes), []string{l.GetValue()}})
			}
			return printed(printLabelled(c.OutOrStdout(), lines))
		})
	}
	return c
}

// askStatus waits no longer for a server that hangs than for one that does not listen.
func askStatus(ctx context.Context, client adminpb.AdminClient) (*adminpb.ServerStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	s, err := client.GetStatus(ctx, &adminpb.GetStatusRequest{})
	if err != nil {
		return nil, callError{err}
	}
	return s, nil
}
