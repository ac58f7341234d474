package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

func newStatus(dial dialer) *cobra.Command {
	c := &cobra.Command{Use: "status", Short: "Show what the server of this node is, may do and has to do", Args: takes(0)}
	output := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return dial(func(client adminpb.AdminClient) error {
			s, err := askStatus(c.Context(), client)
			if err != nil {
				return err
			}
			byName, t := map[string]string{}, table{}
			for _, l := range append([]*adminpb.StatusLine{{Name: "healerctl", Value: version}}, s.GetLines()...) {
				byName[l.GetName()] = l.GetValue()
				t.labelled(l.GetName(), l.GetValue())
			}
			return answer(c, *output, byName, t.print)
		})
	}
	return c
}

// askStatus waits no longer for a server that hangs than for one that does not listen.
func askStatus(ctx context.Context, client adminpb.AdminClient) (*adminpb.ServerStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	return client.GetStatus(ctx, &adminpb.GetStatusRequest{})
}
