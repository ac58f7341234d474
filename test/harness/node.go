package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Driver is the CSI driver of the tests' volumes.
const Driver = "test.csi.example.com"

// Node is a node of a cluster: a kubelet root that is a shared mount, as on a
// real one, and a server that looks after it.
type Node struct {
	T testing.TB
	// Dir holds everything of the node; Kubelet, its kubelet root, is in it.
	Dir     string
	Kubelet string
	// Args follow the server's usual flags. They, Binary, AnyDriver, Pause, Namespace
	// and Less take effect with the next Start.
	Args []string
	// Binary is the server; empty: the one that all tests use.
	Binary string
	// AnyDriver starts the server for all drivers, as it is shipped, and not for
	// Driver alone, by whose name it also finds volumes that no file names.
	AnyDriver bool
	// Pause lists the instants at which workers stop (see Faults).
	Pause string
	// Namespace starts the server in a mount namespace of its own.
	Namespace bool
	// Less takes privileges from the server before it starts.
	Less []Lessen
	// Transient are parts of messages that only a busy machine brings about. Expect asks again where one
	// stands in the way of what it expects.
	Transient []string
	// Log has what all servers of this node logged.
	Log LogFile
	// Conn is the client's connection to the running server.
	Conn *grpc.ClientConn

	server *exec.Cmd
	ended  <-chan error
}

// maxLogged is how much of a server's log a test shows that failed, in bytes.
const maxLogged = 32 << 10

// NewNode makes a node without a server. The server's own arguments come after
// the usual ones.
func NewNode(t testing.TB, args ...string) *Node {
	t.Helper()
	NeedsRoot(t)
	n := &Node{T: t, Dir: t.TempDir(), Args: args}
	n.Kubelet = filepath.Join(n.Dir, "kubelet")
	n.Log = LogFile(filepath.Join(n.Dir, "log"))
	Mkdir(t, n.Kubelet)
	Must(t, unix.Mount("kubelet", n.Kubelet, "tmpfs", 0, "mode=0755"))
	Must(t, unix.Mount("", n.Kubelet, "", unix.MS_SHARED, ""))
	_ = unix.Mount("fusectl", fusectl, "fusectl", 0, "") // as systemd does; it mostly is
	t.Cleanup(func() {
		n.Stop()
		unmountBeneath(t, n.Dir)
		if log := n.Log.String(); t.Failed() {
			t.Logf("the end of the server's log:\n%s", log[max(len(log)-maxLogged, 0):])
		}
	})
	return n
}

// Socket is the path of the server's socket.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "run", "s.sock") }

// StateDir is the server's state directory.
func (n *Node) StateDir() string { return filepath.Join(n.Dir, "state") }

// LogFile is the path of a server's log.
type LogFile string

// String returns what was logged so far.
func (l LogFile) String() string {
	raw, err := os.ReadFile(string(l))
	if err != nil {
		return err.Error()
	}
	return string(raw)
}
