package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/spec/lib/go/identity"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

func TestForeignUIDIsRefusedEverywhere(t *testing.T) {
	logged := captureLog(t, "0")
	h := &fakeHealer{}
	cfg := testConfig(h)
	cfg.AllowedUIDs = []uint32{uint32(os.Getuid()) + 1, uint32(os.Getuid()) + 2}
	s := serve(t, cfg)
	want := fmt.Sprintf("uid %d may not call this server (--allowed-uids)", os.Getuid())

	check := func(what string, err error) {
		t.Helper()
		if got := status.Convert(err); got.Code() != codes.Unauthenticated || got.Message() != want {
			t.Errorf("%s: got %v", what, got)
		}
	}
	ctx := testContext(t)
	_, err := s.healer().NodeHealer(ctx, goodRequest())
	check("NodeHealer", err)
	_, err = identity.NewIdentityClient(s.conn).Probe(ctx, &identity.ProbeRequest{})
	check("Probe", err)
	_, err = grpc_health_v1.NewHealthClient(s.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	check("health check", err)
	for _, method := range []string{"/healer.HealerNode/NoSuchMethod", "/no.such/Service"} {
		check(method, s.conn.Invoke(ctx, method, goodRequest(), &healerpb.NodeHealerResponse{}))
	}
	check("garbage", s.conn.Invoke(ctx, healerpb.HealerNode_NodeHealer_FullMethodName, []byte{0xff}, &healerpb.NodeHealerResponse{}, grpc.ForceCodecV2(rawCodec{})))

	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	check("health watch", err)
	stream, err := reflectionv1.NewServerReflectionClient(s.conn).ServerReflectionInfo(ctx)
	if err == nil {
		_, err = stream.Recv()
	}
	check("reflection", err)

	if len(h.volumes()) != 0 {
		t.Error("the healer was asked")
	}
	for _, want := range []string{"Caller refused", fmt.Sprintf("uid=%d", os.Getuid()), fmt.Sprintf("pid=%d", os.Getpid()), "--allowed-uids"} {
		if !strings.Contains(logged(), want) {
			t.Errorf("%q is not in the log:\n%s", want, logged())
		}
	}
}

func TestAllowedUIDGetsThrough(t *testing.T) {
	var seen Peer
	h := &fakeHealer{during: func(ctx context.Context) {
		who, _ := peer.FromContext(ctx)
		seen, _ = who.AuthInfo.(Peer)
	}}
	cfg := testConfig(h)
	cfg.AllowedUIDs = []uint32{uint32(os.Getuid()) + 1, uint32(os.Getuid())}
	s := serve(t, cfg)
	if _, err := s.healer().NodeHealer(testContext(t), goodRequest()); err != nil {
		t.Fatal(err)
	}
	if seen.UID != uint32(os.Getuid()) || seen.GID != uint32(os.Getgid()) || seen.PID != int32(os.Getpid()) {
		t.Errorf("got %+v", seen)
	}
}

func TestUnknownMethodAndService(t *testing.T) {
	s := serve(t, testConfig(&fakeHealer{}))
	for _, method := range []string{"/healer.HealerNode/NoSuchMethod", "/no.such/Service"} {
		err := s.conn.Invoke(testContext(t), method, goodRequest(), &healerpb.NodeHealerResponse{})
		if status.Code(err) != codes.Unimplemented || reasonOf(err) != "NOT_OFFERED" {
			t.Errorf("%s: got %v %s", method, err, reasonOf(err))
		}
	}
}

// TestIsRoot connects as this process's user, and as another one where root may do that.
func TestIsRoot(t *testing.T) {
	// Abstract (unix(7)): no other user may enter a directory of this test.
	path := fmt.Sprintf("@node-healer-test-%d", os.Getpid())
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	l := netutil.LimitListener(peerListener{unix}, 10)
	accepted := func() bool {
		t.Helper()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return IsRoot(c)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := accepted(); got != (os.Getuid() == 0) {
		t.Errorf("uid %d is root: %t", os.Getuid(), got)
	}
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	if IsRoot(here) {
		t.Error("what is no unix socket is root's")
	}
	if os.Getuid() != 0 {
		t.Skip("only root can connect as another user")
	}
	if err := connectAs(4711, path); err != nil {
		t.Fatal(err)
	}
	if accepted() {
		t.Error("uid 4711 is root")
	}
}

// connectAs connects with the effective uid of one thread, which ends with it.
func connectAs(uid int, path string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread is not used again
		done <- func() error {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			// The system call itself: syscall.Setresuid is for all threads.
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
				return errors.Join(errno, syscall.Close(fd))
			}
			return errors.Join(syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}), syscall.Close(fd))
		}()
	}()
	return <-done
}

func TestOnlyUnixSocketsAreServed(t *testing.T) {
	logged := captureLog(t, "0")
	noGoroutineLeft(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &fakeHealer{}
	s := &served{ended: make(chan error, 1)}
	s.run(t, testConfig(h), l, l.Addr().String())
	if _, err := s.healer().NodeHealer(testContext(t), goodRequest()); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	if len(h.volumes()) != 0 || !strings.Contains(logged(), "only unix sockets are served") {
		t.Errorf("log:\n%s", logged())
	}
}
