package nodeserver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// callerRecorder is a healer that records the callers of its calls.
type callerRecorder struct {
	fakeHealer

	callers []string
}

func (h *callerRecorder) Heal(ctx context.Context, v healer.Volume) (healer.Report, error) {
	h.callers = append(h.callers, "heal for "+healer.CallerOf(ctx))
	return h.fakeHealer.Heal(ctx, v)
}

func (h *callerRecorder) Check(ctx context.Context, v healer.Volume) (healer.Report, error) {
	h.callers = append(h.callers, "check for "+healer.CallerOf(ctx))
	return h.fakeHealer.Check(ctx, v)
}

// serveForwarded serves as to a gateway that has the uid of this process.
func serveForwarded(t *testing.T, h healer.Engine) *served {
	t.Helper()
	noGoroutineLeft(t)
	cfg := testConfig(h)
	cfg.AllowedUIDs = []uint32{4711}
	s := &served{socket: filepath.Join(t.TempDir(), "g", "gateway.sock"), ended: make(chan error, 1)}
	l, err := ListenForGroup("unix://"+s.socket, os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	s.run(t, cfg, l, "unix://"+s.socket, func(server *Server) func() error {
		// In place of --gateway-uid: root, as which tests may run, is none.
		server.gateway.Stop()
		server.gateway = server.newGRPC(maxGatewayStreams, peerGuard{allowed: []uint32{uint32(os.Getuid())}, rule: "--gateway-uid", callerOf: forwardedCaller}, server.register)
		server.cfg.GatewayUID = 1
		return func() error { return server.ServeGateway(l) }
	})
	return s
}

// TestForwardedCaller: the gateway names the caller and what it may do.
func TestForwardedCaller(t *testing.T) {
	for name, tc := range map[string]struct {
		md   metadata.MD
		want string // what the healer is asked; empty: nothing
		says string
	}{
		"heal":         {metadata.Pairs(forwarded.Caller, "jane", forwarded.Verb, "heal"), "heal for jane", ""},
		"check":        {metadata.Pairs(forwarded.Caller, "jane", forwarded.Verb, "check"), "check for jane", ""},
		"any name":     {metadata.Pairs(forwarded.Caller, "j\nä\x00", forwarded.Verb, "heal"), `heal for j\nä\x00`, ""},
		"the loop":     {metadata.Pairs(forwarded.Caller, "loop", forwarded.Verb, "heal"), "heal for user loop", ""},
		"root":         {metadata.Pairs(forwarded.Caller, "uid 0", forwarded.Verb, "heal"), "heal for user uid 0", ""},
		"no name":      {metadata.Pairs(forwarded.Verb, "heal"), "", "does not say who calls"},
		"empty name":   {metadata.Pairs(forwarded.Caller, "", forwarded.Verb, "heal"), "", "does not say who calls"},
		"two names":    {metadata.Pairs(forwarded.Caller, "a", forwarded.Caller, "b", forwarded.Verb, "heal"), "", "does not say who calls"},
		"no verb":      {metadata.Pairs(forwarded.Caller, "jane"), "", "does not say who calls"},
		"two verbs":    {metadata.Pairs(forwarded.Caller, "a", forwarded.Verb, "check", forwarded.Verb, "heal"), "", "does not say who calls"},
		"another verb": {metadata.Pairs(forwarded.Caller, "a", forwarded.Verb, "destroy"), "", `"destroy"`},
	} {
		t.Run(name, func(t *testing.T) {
			h := &callerRecorder{}
			s := serveForwarded(t, h)
			ctx := metadata.NewOutgoingContext(testContext(t), tc.md)
			_, err := s.healer().NodeHealer(ctx, goodRequest())
			if tc.want != "" && err != nil || tc.want == "" && (status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("got %v", err)
			}
			if got := strings.Join(h.callers, "; "); got != tc.want {
				t.Errorf("asked to %q, want %q", got, tc.want)
			}
			// No other call is answered either.
			_, err = identity.NewIdentityClient(s.conn).GetIdentity(ctx, &identity.GetIdentityRequest{})
			if (err == nil) != (tc.want != "") {
				t.Errorf("identity: %v", err)
			}
		})
	}
}

// TestLocalSocketIgnoresForwardedCallers: only the gateway may name another caller.
func TestLocalSocketIgnoresForwardedCallers(t *testing.T) {
	h := &callerRecorder{}
	s := serve(t, testConfig(h))
	ctx := metadata.NewOutgoingContext(testContext(t), metadata.Pairs(forwarded.Caller, "jane", forwarded.Verb, "check"))
	if _, err := s.healer().NodeHealer(ctx, goodRequest()); err != nil {
		t.Fatal(err)
	}
	if len(h.callers) != 1 || !strings.HasPrefix(h.callers[0], "heal for uid ") {
		t.Errorf("asked to %q", h.callers)
	}
}

func TestGatewaySocketIsTheGroupsToo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "g")
	l, err := ListenForGroup("unix://"+dir+"/s", os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for path, want := range map[string]os.FileMode{dir: 0o750, dir + "/s": 0o660} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v, want %o", path, info.Mode(), err, want)
		}
	}
}

func TestOthersThanTheGatewayAreRefused(t *testing.T) {
	cfg := testConfig(&fakeHealer{})
	cfg.AllowedUIDs, cfg.GatewayUID = []uint32{uint32(os.Getuid())}, 4711
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[uint32]bool{4711: true, 0: false, uint32(os.Getuid()): false} {
		guard := peerGuard{allowed: []uint32{server.cfg.GatewayUID}}
		if got := guard.knows(Peer{UID: uid}); got != want {
			t.Errorf("uid %d: %v", uid, got)
		}
	}
	cfg.GatewayUID = uint32(os.Getuid())
	if _, err := New(cfg); os.Getuid() != 0 && err == nil {
		t.Error("the gateway's uid may call for itself, too")
	}
}
