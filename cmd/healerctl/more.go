package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
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

// listVolumes returns the volumes of the node, and as unlisted why some may be missing.
func listVolumes(ctx context.Context, client adminpb.AdminClient) (volumes []*adminpb.Volume, unlisted, err error) {
	stream, err := client.ListVolumes(ctx, &adminpb.ListVolumesRequest{})
	if volumes, err = all(stream, err); err != nil {
		return nil, nil, err
	}
	if why := stream.Trailer().Get(adminpb.TrailerUnlisted); len(why) > 0 {
		unlisted = callError{status.Error(codes.Unknown, "some volumes may be missing: "+strings.Join(why, "; "))}
	}
	return volumes, unlisted, nil
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
