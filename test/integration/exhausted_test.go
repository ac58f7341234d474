package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// TestNoDescriptorLeft takes every further file descriptor from the server: the
// call is answered with an error, and the next one works when there are some.
func TestNoDescriptorLeft(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "asked for")
	n.Expect("healthy", v.Request())
	before := n.Table()
	v.Unpublish()
	noWorkers(n)
	usual := limitFiles(n, 0)
	for range 3 {
		unknown(n, v.Request())
	}
	late := knock(n)
	limitFiles(n, usual)
	if err := <-late; err != nil {
		t.Errorf("a caller that came meanwhile got %v", err)
	}
	n.Expect("healed", v.Request(), "NotMounted")
	n.SameTable(before)
	n.Expect("healthy", v.Request())
}

// knock has another caller connect, and returns what becomes of it.
func knock(n *harness.Node) <-chan error {
	n.T.Helper()
	conn, err := grpc.NewClient("unix://"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	harness.Must(n.T, err)
	answered := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
		defer cancel()
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
		answered <- errors.Join(err, conn.Close())
	}()
	harness.Eventually(n.T, "it is connected", func() bool { return conn.GetState() != connectivity.Idle })
	return answered
}

// limitFiles sets how many descriptors the server may have, and returns the limit
// of before.
func limitFiles(n *harness.Node, files uint64) (usual uint64) {
	n.T.Helper()
	var old unix.Rlimit
	harness.Must(n.T, unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, nil, &old))
	harness.Must(n.T, unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: old.Max}, nil))
	return old.Cur
}

// TestNoProcessLeft lets the server start no further process or thread. A Go
// program ends when its runtime needs a thread and gets none, so a few callers
// have it make some beforehand.
func TestNoProcessLeft(t *testing.T) {
	c := harness.NewCgroup(t, "pids")
	n := harness.NewNode(t, "--standalone").Start()
	c.Take(n.PID())
	v := n.NewVolume("ext4", "asked for")
	n.Expect("healthy", v.Request())
	var all []*healerpb.NodeHealerRequest
	for i := range 8 {
		all = append(all, n.NewVolume("ext4", fmt.Sprintf("another %d", i)).Request())
	}
	load := n.AskContinuously(len(all), all...)
	harness.Eventually(t, "all were asked for often", func() bool { return load.Answers() > 30*len(all) })
	load.Stop()
	before := n.Table()
	v.Unpublish()
	noWorkers(n)
	c.Limit(1)
	for range 3 {
		unknown(n, v.Request())
	}
	c.Lift()
	n.Expect("healed", v.Request(), "NotMounted")
	n.SameTable(before)
	n.Expect("healthy", v.Request())
}

// TestNoProcessLeftAtTheStart lets a server start no thread that nobody has called yet. Without
// the threads that it makes at its start it ended in 4 of 5 rounds.
func TestNoProcessLeftAtTheStart(t *testing.T) {
	c := harness.NewCgroup(t, "pids")
	for range 3 {
		n := harness.NewNode(t, "--standalone").Start()
		c.Take(n.PID())
		var all []*harness.Volume
		for i := range 4 {
			all = append(all, n.NewVolume("tmpfs", fmt.Sprintf("one %d", i)))
		}
		noWorkers(n)
		c.Limit(1)
		var calls sync.WaitGroup
		for i := range 120 {
			calls.Go(func() { _, _ = n.Call(all[i%len(all)].Request()) })
		}
		calls.Wait()
		c.Lift()
		n.Expect("healthy", all[0].Request())
		n.Stop()
	}
}

// TestOutOfMemory has the kernel end a worker that wants more memory than there
// is.
func TestOutOfMemory(t *testing.T) {
	c := harness.NewCgroup(t, "memory")
	n := harness.NewNode(t, "--standalone")
	n.Pause = "inspect"
	n.Start()
	v := n.NewVolume("ext4", "checked")
	lost := n.BeginAndStop(v.Request())
	lost.Starve(c)
	if err := lost.Err(); status.Code(err) != codes.Unknown {
		t.Errorf("got %v", err)
	}
	if c.Starved() == 0 {
		t.Error("the kernel ended no process for lack of memory: the test shows nothing")
	}
	next := n.BeginAndStop(v.Request())
	next.Resume()
	if a := next.Answer(); a == nil || a.GetAbnormal() {
		t.Errorf("the next call got %v", a)
	}
}

// noWorkers ends the workers that wait for work: the next call needs a new one.
func noWorkers(n *harness.Node) {
	n.T.Helper()
	workers := n.Workers()
	for _, pid := range workers {
		harness.Must(n.T, unix.Kill(pid, unix.SIGKILL))
	}
	harness.Eventually(n.T, "the workers end", func() bool { return !slices.ContainsFunc(workers, harness.Lives) })
}

// unknown fails the test unless the call is answered, soon and with UNKNOWN.
func unknown(n *harness.Node, req *healerpb.NodeHealerRequest) {
	n.T.Helper()
	a, err := n.Call(req)
	if status.Code(err) != codes.Unknown {
		n.T.Fatalf("got %v %v\n%s", a, err, n.Log)
	}
}
