package nodeserver

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// countingListener counts the connections that were taken in.
type countingListener struct {
	net.Listener
	taken atomic.Int32
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.taken.Add(1)
	}
	return c, err
}

// probed is a server whose health is served on TCP too.
type probed struct {
	*served
	listener *countingListener
	client   *grpc.ClientConn
	ended    chan error
}

func serveProbed(t *testing.T, h Healer) *probed {
	t.Helper()
	p := &probed{served: serve(t, testConfig(h)), ended: make(chan error, 1)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.listener = &countingListener{Listener: l}
	if p.client, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.client.Close() })
	go func() { p.ended <- p.server.ServeHealth(p.listener) }()
	return p
}

func (p *probed) check(t *testing.T) (grpc_health_v1.HealthCheckResponse_ServingStatus, error) {
	t.Helper()
	got, err := grpc_health_v1.NewHealthClient(p.client).Check(testContext(t), &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	return got.GetStatus(), err
}

func TestHealthAddressKnowsNothingElse(t *testing.T) {
	h := &fakeHealer{}
	p := serveProbed(t, h)
	if got, err := p.check(t); err != nil || got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("got %v, %v", got, err)
	}
	_, err := healerpb.NewHealerNodeClient(p.client).NodeHealer(testContext(t), goodRequest())
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("NodeHealer over TCP: %v", err)
	}
	for _, method := range []string{"/identity.Identity/GetIdentity", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
		if err := p.client.Invoke(testContext(t), method, goodRequest(), &healerpb.NodeHealerResponse{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s over TCP: %v", method, err)
		}
	}
	if len(h.volumes()) != 0 {
		t.Error("the healer was asked")
	}
}

// Anybody can connect: that must not cost the server its descriptors.
func TestHealthAddressTakesFewConnections(t *testing.T) {
	p := serveProbed(t, &fakeHealer{})
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			_ = c.Close()
		}
	}()
	for range 3 * healthConns {
		c, err := net.Dial("tcp", p.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	for deadline := time.Now().Add(5 * time.Second); p.listener.taken.Load() < healthConns && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	if taken := p.listener.taken.Load(); taken != healthConns {
		t.Errorf("%d connections were taken in, want %d", taken, healthConns)
	}
	if _, err := p.healer().NodeHealer(testContext(t), goodRequest()); err != nil {
		t.Errorf("the socket meanwhile: %v", err)
	}
	for _, c := range idle {
		_ = c.Close()
	}
	if got, err := p.check(t); err != nil || got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("when they are gone: %v, %v", got, err)
	}
}

// Until the last call has ended kubelet hears that the server stops.
func TestHealthAddressEndsWithTheServer(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	p := serveProbed(t, &fakeHealer{during: func(context.Context) { close(entered); <-release }})
	answered, stopped := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := p.healer().NodeHealer(testContext(t), goodRequest())
		answered <- err
	}()
	<-entered
	go func() { stopped <- p.server.Stop(testContext(t)) }()
	for !p.server.calls.draining() {
		time.Sleep(time.Millisecond)
	}
	if got, err := p.check(t); err != nil || got != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("while it stops: %v, %v", got, err)
	}
	close(release)
	for what, ended := range map[string]chan error{"the call": answered, "Stop": stopped, "ServeHealth": p.ended} {
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s does not end", what)
		}
	}
	if _, err := net.Dial("tcp", p.listener.Addr().String()); err == nil {
		t.Error("the address is still served")
	}
}
