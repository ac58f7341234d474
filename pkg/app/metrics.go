package app

import (
	"context"
	"fmt"
	"net"

	"github.com/csi-addons/node-healer/internal/metrics"
	"github.com/csi-addons/node-healer/internal/setup"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// newMetrics returns what counts; without --metrics-socket nothing reads it. It comes
// before the first client of the API, as client-go reads what is set here without a lock.
func newMetrics(version string, parts *setup.Parts) (*metrics.Metrics, error) {
	reasons := healer.Reasons()
	for _, c := range parts.Explained() {
		reasons = append(reasons, c.Reason)
	}
	m, err := metrics.New(metrics.Config{Version: version, Reasons: reasons, Workers: parts.Workers.Stats})
	if err != nil {
		return nil, err
	}
	m.CountAPIRequests()
	return m, nil
}

// serveMetrics serves them on --metrics-socket until stop is called. The gateway reads
// them, too, if there is one.
func serveMetrics(cfg config, m *metrics.Metrics, server *nodeserver.Server) (stop func(context.Context) error, err error) {
	if cfg.metricsSocket == "" {
		return func(context.Context) error { return nil }, nil
	}
	listen := nodeserver.Listen
	if cfg.GatewayUID != 0 {
		listen = func(endpoint string) (net.Listener, error) {
			return nodeserver.ListenForGroup(endpoint, int(cfg.GatewayUID))
		}
	}
	l, err := listen(cfg.metricsSocket)
	if err != nil {
		return nil, fmt.Errorf("--metrics-socket: %w", err)
	}
	serving := metrics.Serving{Ready: server.Ready}
	if cfg.pprof {
		serving.Profiles = nodeserver.IsRoot // the gateway may connect, too
	}
	return m.Serve(l, serving), nil
}
