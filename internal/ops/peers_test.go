package ops

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Who connected to the process is none of its servers; a process that has ended had none.
func TestPeers(t *testing.T) {
	var want []facts.Peer
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		must(t, err)
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		defer c.Close()
		accepted, err := l.Accept()
		must(t, err)
		defer accepted.Close()
		want = append(want, facts.Peer{Address: l.Addr().String(), Connected: true})
	}
	s := peerScan(t)
	self := s.daemonOf(t, os.Getpid())
	other := self
	other.by.Connection, other.sockets = 8, nil
	untilTold(t, self.by.Connection, want, func() map[uint64][]facts.Peer { return s.peers([]connections{self, self, other}) })
	ended := exec.CommandContext(t.Context(), "true")
	must(t, ended.Run())
	gone := self
	gone.by.PID = ended.Process.Pid
	if got := s.peers([]connections{gone}); len(got) > 0 {
		t.Errorf("of a process that has ended: %+v", got)
	}
}

// A walk is whole without the sockets of a network namespace that cannot be read in time.
func TestPeersThatCannotBeToldInTime(t *testing.T) {
	s := &scan{end: time.Now().Add(time.Hour)}
	s.proc = procTree(t, map[int]map[string]string{10: {"net/tcp": "FIFO"}})
	if got := s.peers([]connections{{by: facts.FUSEDaemon{PID: 10, Connection: 7}, sockets: []uint64{1}}}); len(got) > 0 || s.cut {
		t.Errorf("%+v, cut %t", got, s.cut)
	}
	// A namespace with any number of sockets.
	if _, err := peerScan(t).readPeers(strconv.Itoa(os.Getpid())+"/net/tcp", nil, time.Now()); !errors.Is(err, errTooManyFiles) {
		t.Errorf("in the middle of a table: %v", err)
	}
}

// One walk tells who serves a connection, and with whom that process is connected if that is asked.
func TestPeersOfADaemon(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer c.Close()
	socket, err := c.(*net.TCPConn).File()
	must(t, err)
	defer socket.Close()
	f, without := newSilentFUSE(t, socket), newSilentFUSE(t)
	newSilentFUSE(t, socket) // not asked for
	f.daemons(t)             // or this kernel does not tell them
	asked := []uint64{f.connection(), without.connection()}
	untilTold(t, f.connection(), []facts.Peer{{Address: l.Addr().String(), Connected: true}}, func() map[uint64][]facts.Peer {
		a := daemonsWalked(t, ProcessesQuery{PeersOf: asked})
		if len(a.Daemons) < 3 {
			t.Errorf("%d daemons", len(a.Daemons))
		}
		return a.Peers
	})
}

// untilTold waits until one connection alone has peers, and these: a walk does without those of a network
// namespace that are not read in time, and a busy machine reads slowly.
func untilTold(t *testing.T, connection uint64, want []facts.Peer, peers func() map[uint64][]facts.Peer) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		got := peers()
		if len(got) == 1 && slices.Equal(got[connection], want) {
			return
		}
		if len(got) > 0 || time.Now().After(end) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
}

// In the network namespace of the process, where nothing answers.
func TestPeersInAnotherNetwork(t *testing.T) {
	needsRoot(t)
	const connects = `set -e
		ip link add d0 type veth peer name d1
		ip address add 198.18.0.1/24 dev d0
		ip link set d0 up
		ip link set d1 up
		ip neighbour add 198.18.0.2 lladdr 02:00:00:00:00:01 dev d0
		exec bash -c 'exec 3<>/dev/tcp/198.18.0.2/443'`
	cmd := exec.CommandContext(t.Context(), "bash", "-c", connects)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	must(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	s := peerScan(t)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		d := s.daemonOf(t, cmd.Process.Pid)
		found := s.peers([]connections{d})[d.by.Connection]
		if len(found) == 1 && found[0].Address == "198.18.0.2:443" && found[0].Retransmits > 1 && !found[0].Connected {
			return
		} else if time.Now().After(end) {
			t.Fatalf("found %+v", found)
		}
	}
}

func peerScan(t *testing.T) *scan {
	t.Helper()
	proc, _, err := openProcfs()
	must(t, err)
	t.Cleanup(proc.close)
	return &scan{proc: proc, end: time.Now().Add(time.Hour)}
}

// daemonOf returns a process as if it served connection 7.
func (s *scan) daemonOf(t *testing.T, pid int) connections {
	t.Helper()
	d := s.connectionsOf(pid)
	if d.by = s.processOf(pid).FUSEDaemon; d.by.PID == 0 {
		t.Fatal("there is no such process")
	}
	d.by.Connection = 7
	return d
}
