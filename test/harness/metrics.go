package harness

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// Scrape returns the metrics that a server serves on a socket.
func Scrape(t testing.TB, socket string) string {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://node/metrics", nil)
	Must(t, err)
	answer, err := (&http.Client{Transport: transport}).Do(req)
	Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	Must(t, err)
	return string(text)
}

// Metric returns the sum of the series of a scrape that begin like this.
func Metric(t testing.TB, scraped, series string) (sum float64) {
	t.Helper()
	for line := range strings.Lines(scraped) {
		if !strings.HasPrefix(line, series) {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		Must(t, err)
		sum += value
	}
	return sum
}
