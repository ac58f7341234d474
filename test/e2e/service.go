package e2e

import (
	"io"
	"net"
	"net/url"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// serveAPI forwards connections with the service `kubernetes` to the API, as
// kube-proxy would, until the test ends.
func serveAPI(t testing.TB, c *cluster.Cluster) {
	t.Helper()
	api, err := url.Parse(c.URL())
	harness.Must(t, err)
	l, err := net.Listen("tcp", net.JoinHostPort(cluster.ServiceIP, "443"))
	harness.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			pod, err := l.Accept()
			if err != nil {
				return
			}
			go forward(pod, api.Host)
		}
	}()
}

// forward copies both directions until one side closes.
func forward(from net.Conn, to string) {
	defer from.Close()
	there, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer there.Close()
	go func() {
		defer from.Close()
		_, _ = io.Copy(from, there)
	}()
	_, _ = io.Copy(there, from)
}
