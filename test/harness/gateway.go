package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// GatewayUID is what the shipped manifests run the gateway as.
const GatewayUID = 70707

// Gateway is a node-healer-gateway of a node, that runs as a user of its own and
// without privileges.
type Gateway struct {
	T testing.TB
	// Address is where it serves.
	Address string
	// Log has what it logged.
	Log LogFile

	n    *Node
	dir  string
	cmd  *exec.Cmd
	args []string
}

// NewGateway makes a gateway that does not run yet, and has the node's server
// serve it from its next start on. The arguments come after --endpoint and --server.
func NewGateway(n *Node, args ...string) *Gateway {
	n.T.Helper()
	// A test's own directories are for one user only.
	dir, err := os.MkdirTemp("", "node-healer-gateway-")
	Must(n.T, err)
	n.T.Cleanup(func() { _ = os.RemoveAll(dir) })
	Must(n.T, os.Chmod(dir, 0o755))
	g := &Gateway{T: n.T, n: n, dir: dir, Address: freeAddress(n.T), Log: LogFile(filepath.Join(dir, "log"))}
	g.args = append([]string{"--endpoint=tcp://" + g.Address, "--server=" + g.Socket()}, args...)
	n.Args = append(n.Args, "--gateway-socket="+g.Socket(), "--gateway-uid="+strconv.Itoa(GatewayUID))
	n.T.Cleanup(g.Stop)
	return g
}

// Socket is where the node's server serves the gateway.
func (g *Gateway) Socket() string { return "unix://" + filepath.Join(g.dir, "s", "gateway.sock") }

// ServeMetrics has the node's server and the gateway serve metrics from their next start
// on, and returns the gateway's address for them.
func (g *Gateway) ServeMetrics() (address string) {
	g.T.Helper()
	socket, address := "unix://"+filepath.Join(g.dir, "s", "metrics.sock"), freeAddress(g.T)
	g.n.Args = append(g.n.Args, "--metrics-socket="+socket)
	g.args = append(g.args, "--metrics-server="+socket, "--metrics-endpoint=tcp://"+address)
	return address
}

// Own returns a file that only the gateway can read, with the content of
// one that is there.
func (g *Gateway) Own(file string) string {
	g.T.Helper()
	raw, err := os.ReadFile(file)
	Must(g.T, err)
	own := filepath.Join(g.dir, filepath.Base(file))
	Must(g.T, os.WriteFile(own, raw, 0o600))
	Must(g.T, os.Chown(own, GatewayUID, GatewayUID))
	return own
}

// Start starts it, with arguments beside its own, and waits until it listens.
func (g *Gateway) Start(args ...string) *Gateway {
	g.T.Helper()
	log, err := os.OpenFile(string(g.Log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	Must(g.T, err)
	defer log.Close()
	g.cmd = exec.Command(gatewayProgram(g.T), append(append(g.args[:len(g.args):len(g.args)], "-v=7"), args...)...)
	g.cmd.Stderr = log
	g.cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1 atexit_sleep_ms=0")
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: GatewayUID, Gid: GatewayUID}}
	Must(g.T, g.cmd.Start())
	Eventually(g.T, "the gateway listens", func() bool {
		c, err := net.Dial("tcp", g.Address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return g
}

// PID is the gateway's process.
func (g *Gateway) PID() int { return g.cmd.Process.Pid }

// Stop ends it gently, if it runs, and fails the test when it does not end well.
func (g *Gateway) Stop() {
	g.T.Helper()
	if g.cmd == nil {
		return
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(Patience, func() { _ = g.cmd.Process.Kill() })
	defer late.Stop()
	if err := g.cmd.Wait(); err != nil {
		g.T.Errorf("the gateway ended with %v\n%s", err, g.Log)
	}
	g.cmd = nil
}

// gatewayProgram is built only for the tests that need it: its build takes longest.
func gatewayProgram(tb testing.TB) string {
	tb.Helper()
	path, err := buildOnce("node-healer-gateway", func(to string) error {
		return errors.Join(buildAs(to, "node-healer-gateway", raceDetector, released),
			os.Chmod(bin, 0o755)) // another user runs it
	})
	Must(tb, err)
	return path
}

// freeAddress returns an address that nobody else has.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	port, err := FreePorts(1)
	Must(tb, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}
