package harness

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// Start starts the server and waits until it serves.
func (n *Node) Start() *Node {
	n.T.Helper()
	n.StartUnanswered()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	_, err := grpc_health_v1.NewHealthClient(n.Conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		n.T.Fatalf("the server does not serve: %v\n%s", err, n.Log)
	}
	return n
}

// StartUnanswered starts a server that may not answer us, and waits only until
// it listens.
func (n *Node) StartUnanswered() *Node {
	n.T.Helper()
	// A file, not a pipe: a worker that cannot be ended would keep it open.
	log, err := os.OpenFile(string(n.Log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	Must(n.T, err)
	defer log.Close()
	args := []string{
		"--endpoint=unix://" + n.Socket(), "--node-id=node-1",
		"--kubelet-root=" + n.Kubelet, "--state-dir=" + n.StateDir(), "-v=5",
	}
	if !n.AnyDriver {
		args = append(args, "--driver-name="+Driver)
	}
	n.server = exec.Command(cmp.Or(n.Binary, Server()), slowArgs(append(args, n.Args...))...)
	n.server.Env = append(os.Environ(), "NODE_HEALER_PAUSE="+n.Pause, "GORACE=halt_on_error=1 atexit_sleep_ms=0")
	n.server.Stderr = log
	if n.Namespace {
		n.server.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	Must(n.T, StartLess(n.server, n.Less...))
	server, ended := n.server, make(chan error, 1)
	go func() { ended <- server.Wait() }()
	n.ended = ended
	// Only then: a client that finds no socket waits a second to try again.
	Eventually(n.T, "the socket answers", func() bool {
		select {
		case err := <-ended:
			n.server = nil
			n.T.Fatalf("the server ended with %v\n%s", err, n.Log)
		default:
		}
		c, err := net.Dial("unix", n.Socket())
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	n.Conn, err = grpc.NewClient("unix://"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	Must(n.T, err)
	return n
}

// PID is the server's process.
func (n *Node) PID() int { return n.server.Process.Pid }

// Terminate asks the server to end, as kubelet does, and waits for nothing.
func (n *Node) Terminate() {
	n.T.Helper()
	Must(n.T, n.server.Process.Signal(syscall.SIGTERM))
}

// Stop ends the server gently and fails the test when it does not end well.
func (n *Node) Stop() {
	n.T.Helper()
	if n.server == nil {
		return
	}
	n.hangUp()
	_ = n.server.Process.Signal(syscall.SIGTERM)
	if err := n.Wait(); err != nil {
		n.T.Errorf("the server ended with %v\n%s", err, n.Log)
	}
}

// Kill ends the server as the kernel would.
func (n *Node) Kill() {
	n.T.Helper()
	n.hangUp()
	Must(n.T, n.server.Process.Kill())
	_ = n.Wait()
}

func (n *Node) hangUp() {
	if n.Conn != nil {
		_ = n.Conn.Close()
	}
}

// Wait waits for the server and its workers to end, and says how the server did.
func (n *Node) Wait() error {
	n.T.Helper()
	workers := n.Workers()
	select {
	case err := <-n.ended:
		n.server = nil
		Eventually(n.T, "the workers end with their server", func() bool {
			// One in an uninterruptible wait has been killed and ends after it.
			return !slices.ContainsFunc(workers, func(pid int) bool { return !slices.Contains([]string{"", "Z", "D"}, State(pid)) })
		})
		return err
	case <-time.After(Patience):
		_ = n.server.Process.Signal(syscall.SIGQUIT)
		err := <-n.ended
		n.server = nil
		return errors.Join(errors.New("no end, see its goroutines"), err)
	}
}
