package ops

import (
	"net"
	"os"
	"os/exec"
	"slices"
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
	self := daemonOf(t, os.Getpid())
	if got, err := peers(PeersQuery{Processes: []facts.FUSEDaemon{self, self}, Budget: time.Minute}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	self.Started++ // another process had the number
	if got, err := peers(PeersQuery{Processes: []facts.FUSEDaemon{self}, Budget: time.Minute}); err != nil || len(got) > 0 {
		t.Errorf("of a process that has ended: %+v, %v", got, err)
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
	d := daemonOf(t, cmd.Process.Pid)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		found, err := peers(PeersQuery{Processes: []facts.FUSEDaemon{d}, Budget: time.Minute})
		must(t, err)
		if len(found) == 1 && found[0].Address == "198.18.0.2:443" && found[0].Retransmits > 1 && !found[0].Connected {
			return
		} else if time.Now().After(end) {
			t.Fatalf("found %+v", found)
		}
	}
}

func daemonOf(t *testing.T, pid int) facts.FUSEDaemon {
	t.Helper()
	proc, err := openProcfs()
	must(t, err)
	defer proc.close()
	d := (&scan{proc: proc}).processOf(pid).FUSEDaemon
	if d.PID == 0 {
		t.Fatal("there is no such process")
	}
	return d
}
