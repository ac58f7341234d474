package nodeserver

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestNewChecksItsConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"healer is required": func(c *Config) { c.Healer = nil },
		"name":               func(c *Config) { c.Name = "-x" },
		"version":            func(c *Config) { c.Version = "" },
		"allowed uid":        func(c *Config) { c.AllowedUIDs = nil },
		"path root":          func(c *Config) { c.Roots = nil },
	} {
		cfg := testConfig(&fakeHealer{})
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestSickVolumeIsAnAnswer(t *testing.T) {
	h := &fakeHealer{report: healer.Report{After: healer.Diagnosis{Conditions: []healer.Condition{{Reason: healer.NotMounted, MountPoint: "/p"}}}}}
	s := serve(t, testConfig(h))
	resp, err := s.healer().NodeHealer(testContext(t), goodRequest())
	if err != nil || !resp.GetAbnormal() || resp.GetMessage() != "abnormal: /p: NotMounted. Nothing was changed" {
		t.Errorf("got %v, %v", resp, err)
	}
	h.next(healer.Report{}, nil, nil)
	resp, err = s.healer().NodeHealer(testContext(t), goodRequest())
	if err != nil || resp.GetAbnormal() || !strings.HasPrefix(resp.GetMessage(), "healthy: ") {
		t.Errorf("got %v, %v", resp, err)
	}
}

// TestManyCallersOnOneConnection: as many as the connection may have are answered at
// once, and the others after them.
func TestManyCallersOnOneConnection(t *testing.T) {
	const callers = 300
	var running atomic.Int32
	all := make(chan struct{})
	h := &fakeHealer{during: func(ctx context.Context) {
		if running.Add(1) == maxStreams {
			close(all)
		}
		select {
		case <-all:
		case <-ctx.Done():
		}
	}}
	s := serve(t, testConfig(h))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			if _, err := s.healer().NodeHealer(testContext(t), goodRequest()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestLimits(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	req := goodRequest()
	req.VolumeContext = map[string]string{"k": strings.Repeat("v", maxRequestBytes)}
	if _, err := s.healer().NodeHealer(testContext(t), req); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large message: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(testContext(t), "x-large", strings.Repeat("h", maxHeaderBytes))
	if _, err := s.healer().NodeHealer(ctx, goodRequest()); err == nil {
		t.Error("a large header went through")
	}
	if len(h.volumes()) != 0 {
		t.Error("the healer was asked")
	}
	// The largest request that the rules allow, at its heaviest on the wire.
	req = goodRequest()
	req.VolumeId = strings.Repeat("i", maxVolumeIDBytes)
	req.VolumePath, req.StagingTargetPath = long(maxPathBytes), long(maxPathBytes)
	flags := strings.Split(strings.Repeat("f", maxFlagBytes), "")
	req.VolumeCapability = mount(writer, strings.Repeat("x", maxFSTypeBytes), flags...)
	req.Secrets, req.VolumeContext = map[string]string{}, map[string]string{}
	for i := range maxMapBytes / 2 {
		key := string([]byte{byte(i / 100 % 100), byte(i % 100)})
		req.Secrets[key], req.VolumeContext[key] = "", ""
	}
	if _, err := s.healer().NodeHealer(testContext(t), req); err != nil {
		t.Errorf("the largest valid request: %v", err)
	}
}

// A caller may compress; the limit is on what comes out of it. The test does not
// import the compressor itself: it would register it for the server too.
func TestCompressedCall(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	if _, err := s.healer().NodeHealer(testContext(t), goodRequest(), grpc.UseCompressor("gzip")); err != nil {
		t.Fatal(err)
	}
	if asked := h.volumes(); len(asked) != 1 || asked[0].ID != goodRequest().GetVolumeId() {
		t.Errorf("the healer was asked for %v", asked)
	}
	bomb := goodRequest()
	bomb.VolumeContext = map[string]string{"k": strings.Repeat("v", maxRequestBytes)}
	if _, err := s.healer().NodeHealer(testContext(t), bomb, grpc.UseCompressor("gzip")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large message, compressed: %v", err)
	}
}

func TestStopLetsRunningCallsEnd(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	h := &fakeHealer{during: func(context.Context) { close(entered); <-release }}
	s := serve(t, testConfig(h))
	answered := make(chan error, 1)
	go func() {
		_, err := s.healer().NodeHealer(testContext(t), goodRequest())
		answered <- err
	}()
	<-entered
	h.next(healer.Report{}, healer.ErrShuttingDown, nil) // as the engine, which ends first: Stop itself refuses only what comes after its news
	stopped := make(chan error, 1)
	go func() { stopped <- s.server.Stop(testContext(t)) }()
	for s.server.Ready() == nil {
		time.Sleep(time.Millisecond)
	}
	// The connection, or a call on it that was quicker than the news of its end, is refused.
	if _, err := s.healer().NodeHealer(testContext(t), goodRequest()); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Aborted {
		t.Errorf("a new call: %v", err)
	}
	select {
	case err := <-stopped:
		t.Fatalf("stopped before the call ended: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the running call: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(s.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// stopDuringCall stops a server during a call, and before the healer is released.
func stopDuringCall(t *testing.T, obedient bool) (took time.Duration, err error) {
	t.Helper()
	entered, release := make(chan struct{}), make(chan struct{})
	h := &fakeHealer{during: func(ctx context.Context) {
		close(entered)
		if obedient {
			<-ctx.Done()
		} else {
			<-release
		}
	}}
	s := serve(t, testConfig(h))
	t.Cleanup(func() { close(release) })
	answered := make(chan error, 1)
	go func() {
		_, err := s.healer().NodeHealer(testContext(t), goodRequest())
		answered <- err
	}()
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	started := time.Now()
	err = s.server.Stop(ctx)
	took = time.Since(started)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("the caller got %v", err)
	}
	return took, err
}

func TestStopIsBounded(t *testing.T) {
	for name, obedient := range map[string]bool{"a healer that obeys": true, "a healer that does not": false} {
		took, err := stopDuringCall(t, obedient)
		for try := 1; (took > 3*handlerGrace || obedient != (err == nil)) && try < 10; try++ { // a busy machine may keep it from ending in time
			took, err = stopDuringCall(t, obedient)
		}
		if took > 3*handlerGrace || obedient != (err == nil) {
			t.Errorf("%s: after %s: %v", name, took, err)
		}
	}
}

func TestIdleStreamsDoNotHoldTheServer(t *testing.T) {
	took, err := stopWithIdleStreams(t)
	for try := 1; (took > time.Second || err != nil) && try < 10; try++ { // a busy machine may keep it from being said in time
		took, err = stopWithIdleStreams(t)
	}
	if took > time.Second || err != nil {
		t.Errorf("the watcher is not told: %v; the server stopped after %s", err, took)
	}
}

// stopWithIdleStreams fails where who watches the server's health did not hear of its end.
func stopWithIdleStreams(t *testing.T) (took time.Duration, err error) {
	t.Helper()
	s := serve(t, testConfig(&fakeHealer{}))
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(testContext(t), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("got %v, %v", got, err)
	}
	reflect, err := reflectionv1.NewServerReflectionClient(s.conn).ServerReflectionInfo(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := reflect.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := reflect.Recv(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(testContext(t), 100*time.Millisecond)
	defer cancel()
	started := time.Now()
	stopped := s.server.Stop(ctx)
	took = time.Since(started)
	got, err := watch.Recv()
	if err == nil && got.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the watcher got %v", got)
	}
	return took, cmp.Or(stopped, err)
}

func TestStopBeforeServe(t *testing.T) {
	server, err := New(testConfig(&fakeHealer{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(testContext(t)); err != nil {
		t.Error(err)
	}
	l, err := Listen("unix://" + t.TempDir() + "/d/s")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(l); err != nil {
		t.Error(err)
	}
}

func TestIdentity(t *testing.T) {
	s := serve(t, testConfig(&fakeHealer{}))
	client := identity.NewIdentityClient(s.conn)
	ctx := testContext(t)
	who, err := client.GetIdentity(ctx, &identity.GetIdentityRequest{})
	if err != nil || who.GetName() != "healer.example.com" || who.GetVendorVersion() != "v1.2.3" {
		t.Errorf("got %v, %v", who, err)
	}
	can, err := client.GetCapabilities(ctx, &identity.GetCapabilitiesRequest{})
	if err != nil || len(can.GetCapabilities()) != 1 || can.GetCapabilities()[0].GetService().GetType() != identity.Capability_Service_NODE_SERVICE {
		t.Errorf("got %v, %v", can, err)
	}
	if ready, err := client.Probe(ctx, &identity.ProbeRequest{}); err != nil || !ready.GetReady().GetValue() {
		t.Errorf("got %v, %v", ready, err)
	}
	s.server.Drain()
	if ready, err := client.Probe(ctx, &identity.ProbeRequest{}); err != nil || ready.GetReady().GetValue() {
		t.Errorf("while stopping: got %v, %v", ready, err)
	}
}

func TestHealth(t *testing.T) {
	s := serve(t, testConfig(&fakeHealer{}))
	for _, service := range []string{"", "healer.HealerNode", "identity.Identity", "csi.v1.Identity", "csi.v1.Node"} {
		got, err := grpc_health_v1.NewHealthClient(s.conn).Check(testContext(t), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%q: got %v, %v", service, got, err)
		}
	}
}

func TestDriverNames(t *testing.T) {
	label := strings.Repeat("a", 63)
	for name, valid := range map[string]bool{
		"healer.example.com": true, "a": true, "A.b-C.9": true, "rook-ceph.rbd.csi.ceph.com": true, "3fs.csi.io": true,
		label: true, label[:31] + "." + label[:31]: true,
		"": false, label + "a": false, label[:31] + "." + label[:32]: false, ".": false, "a.": false, ".a": false, "a..b": false,
		"-a": false, "a-": false, "a.-b": false, "a-.b": false, "a_b": false, "a/b": false, "a b": false, "é": false, "a\n": false,
	} {
		if err := ValidDriverName(name); (err == nil) != valid {
			t.Errorf("%q: got %v, want valid=%v", name, err, valid)
		}
	}
}
