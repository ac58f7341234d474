package driver

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

// raw serves connections that speak no gRPC.
func raw(t *testing.T, serve func(net.Conn)) func(context.Context) (net.Conn, error) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return dialer(at)
}

// A driver that does not speak as it should costs one deadline at most, and nothing
// that it says counts.
func TestHostileSockets(t *testing.T) {
	for name, tc := range map[string]struct {
		serve func(net.Conn)
		says  string
		hangs bool
	}{
		"silent":      {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "DEADLINE_EXCEEDED", true},
		"garbage":     {func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("garbage\n", 10000))) }, "UNAVAILABLE", false},
		"closes":      {func(net.Conn) {}, "UNAVAILABLE", false},
		"half-closes": {func(c net.Conn) { _ = c.(*net.UnixConn).CloseWrite(); _, _ = io.Copy(io.Discard, c) }, "UNAVAILABLE", false},
		"half a frame": {func(c net.Conn) {
			_, _ = c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0})
			_, _ = io.Copy(io.Discard, c)
		}, "DEADLINE_EXCEEDED", true},
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			p := provider(&providertest.Tools{Sockets: map[string]func(context.Context) (net.Conn, error){csiSocket: raw(t, tc.serve)}})
			within := patience
			if tc.hangs {
				within = hanging
			}
			began := time.Now()
			e := collectWithin(t, p, healthy(), within)
			took := time.Since(began)
			if e.Opinion != nil || e.HealsAt != "" || !strings.HasPrefix(e.NotAsked, "cannot be asked: ") || !strings.Contains(e.NotAsked, tc.says) {
				t.Errorf("%+v", e)
			}
			if tc.hangs && took < within/parts || took >= within {
				t.Errorf("it took %s", took)
			}
			if tc.hangs {
				if e := collect(t, p, healthy()); !strings.Contains(e.NotAsked, "a short time ago") {
					t.Errorf("it is asked again at once: %+v", e)
				}
			}
			settled(t, before+1) // the listener's
		})
	}
}

// settled waits until there are no more goroutines than before.
func settled(t *testing.T, before int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, before %d\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func TestNoGoroutineIsLeft(t *testing.T) {
	f := newFake()
	p := f.serve(t)
	collect(t, p, healthy())
	before := runtime.NumGoroutine()
	for range 20 {
		collect(t, p, healthy())
	}
	settled(t, before)
}

func TestBadAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*fake)
		says   string
	}{
		"wrong name":     {func(f *fake) { f.name = "other\x1b.example.com" }, `it names itself "other .example.com"`},
		"a huge name":    {func(f *fake) { f.name = strings.Repeat("x", 1<<20) }, "GetPluginInfo: RESOURCE_EXHAUSTED"},
		"offers nothing": {func(f *fake) { f.capabilities = nil }, "it offers neither"},
		"a huge answer": {func(f *fake) {
			f.health = func(context.Context) (*csi.VolumeHealth, error) {
				return &csi.VolumeHealth{VolumeId: strings.Repeat("v", maxAnswer)}, nil
			}
		}, "NodeGetVolumeHealth: RESOURCE_EXHAUSTED"},
		"huge headers": {func(f *fake) {
			f.health = func(context.Context) (*csi.VolumeHealth, error) {
				return nil, status.Error(codes.Internal, strings.Repeat("x", 1<<20))
			}
		}, "NodeGetVolumeHealth: "},
		"another volume": {func(f *fake) {
			f.health = func(context.Context) (*csi.VolumeHealth, error) {
				return &csi.VolumeHealth{VolumeId: "w", HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{entry(1, "Slow", "x")}}, nil
			}
		}, "the answer is about another volume"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			tc.change(f)
			e := collect(t, f.serve(t), healthy())
			if e.Opinion != nil || !strings.Contains(e.NotAsked, tc.says) || len(e.NotAsked) > 200 {
				t.Errorf("%+v", e)
			}
		})
	}
}

// One that hangs at a volume is not asked about it again, and may heal it.
func TestDriverThatHangsAtTheVolume(t *testing.T) {
	f := newFake()
	f.health = func(ctx context.Context) (*csi.VolumeHealth, error) { <-ctx.Done(); return nil, ctx.Err() }
	p := f.serve(t)
	e := collectWithin(t, p, healthy(), hanging)
	if e.Opinion != nil || !strings.Contains(e.NotAsked, "NodeGetVolumeHealth: DEADLINE_EXCEEDED") || e.HealsAt == "" {
		t.Errorf("%+v", e)
	}
	same(t, "asked", f.take(), []string{"GetPluginInfo", "NodeGetCapabilities", "NodeGetVolumeHealth"})
	if e := collect(t, p, healthy()); !strings.Contains(e.NotAsked, "a short time ago") || len(f.take()) > 0 {
		t.Errorf("it is asked again at once: %+v", e)
	}
}

// Each code is evidence.
func TestEveryCode(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if e := newCallError("", status.New(code, "")); !slices.Contains(e.row.Codes, code) {
			t.Errorf("the table lacks %s", code)
			continue
		}
		f := newFake()
		f.health = func(context.Context) (*csi.VolumeHealth, error) { return nil, status.Error(code, "no") }
		want := "cannot be asked: NodeGetVolumeHealth: " + rpccode.Code(code).String() + ": no"
		if e := collect(t, f.serve(t), healthy()); e.Opinion != nil || e.NotAsked != want {
			t.Errorf("%s: %+v", code, e)
		}
	}
	if e := newCallError("/csi.v1.Node/NodeStageVolume", status.New(99, "no")); !slices.Contains(e.row.Codes, codes.Unknown) || e.Error() != "NodeStageVolume: UNKNOWN: no" {
		t.Errorf("a code of the future: %v", e)
	}
}

// A driver's socket may be this server's own, by mistake.
func TestOwnSocketIsNotAsked(t *testing.T) {
	at := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	own := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", at) }
	e := collect(t, provider(&providertest.Tools{Sockets: map[string]func(context.Context) (net.Conn, error){csiSocket: own, addonsAt: own}}), healthy())
	if !strings.Contains(e.NotAsked, "this server's own") || !strings.Contains(e.NotOffered, "this server's own") || e.HealsAt != "" {
		t.Errorf("%+v", e)
	}
}

func TestConfiguredSocket(t *testing.T) {
	p := New(Config{KubeletRoot: "/k", Sockets: map[string]string{"d": "/k/x/d.sock"}}, nil)
	same(t, "sockets", []string{p.socket("d"), addonsSocket(p.socket("d")), p.socket("e")}, []string{"/k/x/d.sock", "/k/x/csi-addons.sock", "/k/plugins/e/csi.sock"})
}
