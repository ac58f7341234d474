package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/host"
)

// patience bounds every wait of the tests. It is no claim about speed.
const patience = 60 * time.Second

// driver is the CSI driver of the tests' volumes.
const driver = "test.csi.example.com"

// node is a node of a cluster: a kubelet root that is a shared mount, as on a
// real one, and a server that looks after it.
type node struct {
	t       *testing.T
	dir     string
	kubelet string
	args    []string
	// pause lists the instants at which workers stop.
	pause string
	// namespace starts the server in a mount namespace of its own.
	namespace bool
	server    *exec.Cmd
	log       logFile
	conn      *grpc.ClientConn
}

// newNode makes a node without a server. The caller's extra arguments come
// after the usual ones.
func newNode(t *testing.T, args ...string) *node {
	t.Helper()
	needsRoot(t)
	n := &node{t: t, dir: t.TempDir(), args: args}
	n.kubelet = filepath.Join(n.dir, "kubelet")
	mkdir(t, n.kubelet)
	must(t, unix.Mount("kubelet", n.kubelet, "tmpfs", 0, "mode=0755"))
	must(t, unix.Mount("", n.kubelet, "", unix.MS_SHARED, ""))
	t.Cleanup(func() {
		n.stop()
		unmountBeneath(t, n.dir)
	})
	return n
}

// start starts the server and waits until it serves.
func (n *node) start() *node {
	n.t.Helper()
	n.log = logFile(filepath.Join(n.dir, "log"))
	// A file, not a pipe: a worker that cannot be ended would keep it open.
	log, err := os.OpenFile(string(n.log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(n.t, err)
	defer log.Close()
	n.server = exec.Command(filepath.Join(bin, "node-healer"), append([]string{
		"--endpoint=unix://" + n.socket(), "--driver-name=" + driver, "--node-id=node-1",
		"--kubelet-root=" + n.kubelet, "--state-dir=" + n.stateDir(), "-v=5",
	}, n.args...)...)
	n.server.Env = append(os.Environ(), "NODE_HEALER_PAUSE="+n.pause, "GORACE=halt_on_error=1 atexit_sleep_ms=0")
	n.server.Stderr = log
	if n.namespace {
		n.server.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	must(n.t, n.server.Start())
	// Only then: a client that finds no socket waits a second to try again.
	eventually(n.t, "the socket answers", func() bool {
		c, err := net.Dial("unix", n.socket())
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	conn, err := grpc.NewClient("unix://"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(n.t, err)
	n.conn = conn
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatalf("the server does not serve: %v\n%s", err, n.log)
	}
	return n
}

func (n *node) socket() string   { return filepath.Join(n.dir, "run", "s.sock") }
func (n *node) stateDir() string { return filepath.Join(n.dir, "state") }

// stop ends the server gently and fails the test when it does not end well.
func (n *node) stop() {
	n.t.Helper()
	if n.server == nil {
		return
	}
	_ = n.conn.Close()
	_ = n.server.Process.Signal(syscall.SIGTERM)
	if err := n.wait(); err != nil {
		n.t.Errorf("the server ended with %v\n%s", err, n.log)
	}
}

// kill ends the server as the kernel would.
func (n *node) kill() {
	n.t.Helper()
	_ = n.conn.Close()
	must(n.t, n.server.Process.Kill())
	_ = n.wait()
}

func (n *node) wait() error {
	n.t.Helper()
	workers := n.workers()
	done := make(chan error, 1)
	go func() { done <- n.server.Wait() }()
	select {
	case err := <-done:
		n.server = nil
		eventually(n.t, "the workers end with their server", func() bool {
			// One in an uninterruptible wait has been killed and ends after it.
			return !slices.ContainsFunc(workers, func(pid int) bool { return !slices.Contains([]string{"", "Z", "D"}, state(pid)) })
		})
		return err
	case <-time.After(patience):
		_ = n.server.Process.Signal(syscall.SIGQUIT)
		err := <-done
		n.server = nil
		return errors.Join(errors.New("no end, see its goroutines"), err)
	}
}

// call asks for a volume with a deadline of its own.
func (n *node) call(req *healerpb.NodeHealerRequest) (*healerpb.NodeHealerResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return healerpb.NewHealerNodeClient(n.conn).NodeHealer(ctx, req)
}

// expect asks for a volume and compares the verdict and parts of the message.
func (n *node) expect(verdict string, req *healerpb.NodeHealerRequest, has ...string) {
	n.t.Helper()
	a, err := n.call(req)
	if err != nil {
		n.t.Fatalf("NodeHealer: %v\n%s", err, n.log)
	}
	if !strings.HasPrefix(a.GetMessage(), verdict+":") || a.GetAbnormal() != (verdict == "abnormal") {
		n.t.Fatalf("want %s, got abnormal=%v %q\n%s", verdict, a.GetAbnormal(), a.GetMessage(), n.log)
	}
	for _, h := range has {
		if !strings.Contains(a.GetMessage(), h) {
			n.t.Fatalf("the message lacks %q: %q", h, a.GetMessage())
		}
	}
}

// workers lists the server's worker processes.
func (n *node) workers() []int {
	if n.server == nil {
		return nil
	}
	var pids []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.server.Process.Pid))
	for _, task := range tasks {
		raw, _ := os.ReadFile(task)
		for _, f := range strings.Fields(string(raw)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// stopped waits for a worker to stop at the instant the node pauses at.
func (n *node) stopped() int {
	n.t.Helper()
	found := 0
	eventually(n.t, "a worker stops at "+n.pause, func() bool {
		for _, pid := range n.workers() {
			if state(pid) == "T" {
				found = pid
				return true
			}
		}
		return false
	})
	return found
}

// state gives a process's one-letter state, empty when it is gone.
func state(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	after := raw[bytes.LastIndexByte(raw, ')')+2:]
	return string(after[:1])
}

// table gives the mount table beneath the node's directory, one line for each
// mount, without the numbers that change with every mount.
func (n *node) table() []string {
	n.t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	must(n.t, err)
	defer f.Close()
	mounts, err := host.ParseMountinfo(f)
	must(n.t, err)
	var lines []string
	for _, m := range mounts {
		if strings.HasPrefix(m.Path, n.dir) {
			lines = append(lines, fmt.Sprintf("%s %s %s %s %s %s %v shared=%v",
				m.Path, m.Root, m.Dev, m.Attr, m.FSType, m.Source, m.SuperOptions, m.Propagation.Shared != 0))
		}
	}
	sort.Strings(lines)
	return lines
}

// sameTable fails the test when the mount table is not as it was.
func (n *node) sameTable(before []string) {
	n.t.Helper()
	if after := n.table(); !slices.Equal(before, after) {
		n.t.Fatalf("the mount table changed\nbefore:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// unmountBeneath takes off everything that a test left mounted, topmost first.
func unmountBeneath(t *testing.T, dir string) {
	t.Helper()
	for range 10 {
		f, err := os.Open("/proc/self/mountinfo")
		must(t, err)
		mounts, err := host.ParseMountinfo(f)
		_ = f.Close()
		must(t, err)
		left := 0
		for _, m := range slices.Backward(mounts) {
			if strings.HasPrefix(m.Path, dir) {
				left++
				_ = unix.Unmount(m.Path, unix.MNT_DETACH)
			}
		}
		if left == 0 {
			return
		}
	}
	t.Errorf("mounts are left beneath %s", dir)
}

// eventually waits for something that another process does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not seen in time: %s", what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	must(t, os.MkdirAll(path, 0o755))
}

// logFile is the path of the server's log.
type logFile string

// String gives what was logged so far.
func (l logFile) String() string {
	raw, err := os.ReadFile(string(l))
	if err != nil {
		return err.Error()
	}
	return string(raw)
}
