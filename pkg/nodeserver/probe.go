package nodeserver

import (
	"context"
	"fmt"
	"net/url"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// ProbeSocket asks the server at an endpoint "unix:///path" whether it serves. It is for
// exec probes: kubelet's own gRPC probes know neither unix sockets nor TLS.
func ProbeSocket(ctx context.Context, endpoint string) error {
	path, err := socketPath(endpoint)
	if err != nil {
		return err
	}
	target := url.URL{Scheme: "unix", Path: path} // a path may hold % and ?
	conn, err := grpc.NewClient(target.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("probe %s: %w", endpoint, err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	switch {
	case status.Code(err) == codes.Unauthenticated: // it serves those whom --allowed-uids names
		return nil
	case err != nil:
		return fmt.Errorf("probe %s: %w", endpoint, err)
	}
	if s := answer.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("probe %s: the server says %s", endpoint, s)
	}
	return nil
}
