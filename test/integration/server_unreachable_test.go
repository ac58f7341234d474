package integration

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// glusterd is an address at which nothing listens.
var glusterd = netip.MustParseAddrPort("127.0.0.77:24007")

// TestServerUnreachable stops the daemon of a volume whose source names a server, which
// is stopped too, then answers, and then does not: a mount that answers is healthy in all
// cases.
func TestServerUnreachable(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-timeout=3s", "--slow-answer=3s").Start()
	v, fs := n.NewFUSEVolume("gluster", faultfs.Config{Name: "glusterfs", Source: glusterd.Addr().String() + ":/vol"})
	n.Expect("healthy", v.Request())
	hung((*faultfs.FS).Stop)(fs)
	before := n.Table()
	n.Expect("abnormal", v.Request(), "NotResponding", "ServerUnreachable (no connection from the node's network to "+glusterd.String()+" (refused: the host answers")
	fill := listenWithoutAccepting(t)
	a, err := n.Call(v.Request())
	if err != nil || !strings.Contains(a.GetMessage(), "NotResponding") || strings.Contains(a.GetMessage(), glusterd.String()) {
		t.Errorf("the server answers: %v %v", a, err)
	}
	fill()
	// Where the machine is busy there may be no time left to wait for an answer.
	harness.Eventually(t, "the server is silent", func() bool {
		m := n.Message(v.Request())
		return strings.Contains(m, "NotResponding") && strings.Contains(m, "Nothing was changed") &&
			strings.Contains(m, "ServerUnreachable (no connection from the node's network to "+glusterd.String()+" (no answer within ")
	})
	n.SameTable(before)
	fs.Continue()
	soon(n, "healthy", v.Request())
}

// listenWithoutAccepting listens at the address of glusterd. After fill the kernel answers
// no connection, because the queue is full.
func listenWithoutAccepting(t *testing.T) (fill func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	harness.Must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	harness.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	harness.Must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: glusterd.Addr().As4(), Port: int(glusterd.Port())}))
	harness.Must(t, unix.Listen(fd, 8))
	return func() {
		for {
			conn, err := net.DialTimeout("tcp", glusterd.String(), 2*time.Second)
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}
}
