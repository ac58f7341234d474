package nodeserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

const goodToken = "eyJhbGciOiJub25lIn0.good-Token_1~+/.sig=="

// fakeAuthorizer lets tokens do what it was told.
type fakeAuthorizer struct {
	mu    sync.Mutex
	may   map[string][]string // verbs by token
	asked []string            // "verb token", as they came
	from  []string            // their sources
	// during runs inside Authorize.
	during func(ctx context.Context, token string)
}

func newFakeAuthorizer() *fakeAuthorizer {
	return &fakeAuthorizer{may: map[string][]string{goodToken: {VerbHeal, VerbCheck}}}
}

func (f *fakeAuthorizer) Authorize(ctx context.Context, source, token, verb string) error {
	f.mu.Lock()
	f.asked = append(f.asked, verb+" "+token)
	f.from = append(f.from, source)
	verbs, known := f.may[token]
	during := f.during
	f.mu.Unlock()
	if during != nil {
		during(ctx, token)
	}
	if !known {
		return errors.New("token " + token + " is refused")
	}
	if !slices.Contains(verbs, verb) {
		return errors.New("may not " + verb)
	}
	return nil
}

func (f *fakeAuthorizer) questions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.asked...)
}

// remote is a server that is served on the socket and on TCP.
type remote struct {
	*served
	authorizer *fakeAuthorizer
	address    string
	ended      chan error
}

func serveRemote(t *testing.T, h Healer, settings TLS) *remote {
	t.Helper()
	l, err := ListenTCP(testContext(t), "tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveRemoteOn(t, h, settings, l)
}

func serveRemoteOn(t *testing.T, h Healer, settings TLS, l net.Listener) *remote {
	t.Helper()
	r := &remote{authorizer: newFakeAuthorizer(), address: l.Addr().String(), ended: make(chan error, 1)}
	cfg := testConfig(h)
	cfg.TCP = &TCP{Authorizer: r.authorizer, TLS: settings}
	r.served = serve(t, cfg)
	go func() { r.ended <- r.server.ServeTCP(l) }()
	t.Cleanup(func() {
		_ = r.server.Stop(testContext(t))
		if err := <-r.ended; err != nil {
			t.Errorf("ServeTCP: %v", err)
		}
	})
	return r
}

// trusting is how the CSI-Addons controller connects: the token is all that
// counts.
func trusting() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true}
}

func speakingHTTP2() *tls.Config {
	c := trusting()
	c.NextProtos = []string{"h2"}
	return c
}

// dial makes a client that sends these authorizations with each call.
func (r *remote) dial(t *testing.T, config *tls.Config, authorization ...string) *grpc.ClientConn {
	t.Helper()
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	with := func(ctx context.Context) context.Context {
		for _, a := range authorization {
			ctx = metadata.AppendToOutgoingContext(ctx, authorizationKey, a)
		}
		return ctx
	}
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(creds),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			return invoke(with(ctx), method, req, resp, cc, o...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			return stream(with(ctx), d, cc, method, o...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// remoteCalls are one call of each kind that there is.
var remoteCalls = map[string]func(context.Context, *grpc.ClientConn) error{
	"NodeHealer": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := healerpb.NewHealerNodeClient(c).NodeHealer(ctx, goodRequest())
		return err
	},
	"Identity": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := identity.NewIdentityClient(c).GetCapabilities(ctx, &identity.GetCapabilitiesRequest{})
		return err
	},
	"health": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := grpc_health_v1.NewHealthClient(c).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return err
	},
	"health stream": func(ctx context.Context, c *grpc.ClientConn) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := grpc_health_v1.NewHealthClient(c).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	},
	"reflection": func(ctx context.Context, c *grpc.ClientConn) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := reflectionv1.NewServerReflectionClient(c).ServerReflectionInfo(ctx)
		if err != nil {
			return err
		}
		err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
		if err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv says why
			return err
		}
		_, err = stream.Recv()
		return err
	},
	"unknown method": func(ctx context.Context, c *grpc.ClientConn) error {
		return c.Invoke(ctx, "/healer.HealerNode/NoSuchMethod", goodRequest(), &healerpb.NodeHealerResponse{})
	},
	"unknown service": func(ctx context.Context, c *grpc.ClientConn) error {
		return c.Invoke(ctx, "/no.such/Service", goodRequest(), &healerpb.NodeHealerResponse{})
	},
}

func TestTokenMatrix(t *testing.T) {
	h := &fakeHealer{}
	r := serveRemote(t, h, TLS{})
	r.authorizer.may["check-only"] = []string{VerbCheck}
	for name, tc := range map[string]struct {
		authorization []string
		want          codes.Code
		text          string
		// judged says that somebody has to be asked.
		judged bool
		// heals is what NodeHealer answers, if not the same.
		heals codes.Code
	}{
		"none":                 {nil, codes.Unauthenticated, "no bearer token", false, 0},
		"two":                  {[]string{"Bearer " + goodToken, "Bearer " + goodToken}, codes.Unauthenticated, "more than one", false, 0},
		"another scheme":       {[]string{"Basic " + goodToken}, codes.Unauthenticated, "not a bearer token", false, 0},
		"without a scheme":     {[]string{goodToken}, codes.Unauthenticated, "not a bearer token", false, 0},
		"empty":                {[]string{"Bearer "}, codes.Unauthenticated, "is empty", false, 0},
		"padding only":         {[]string{"Bearer =="}, codes.Unauthenticated, "is empty", false, 0},
		"no token's character": {[]string{"Bearer good token"}, codes.Unauthenticated, "characters that no token has", false, 0},
		"oversized":            {[]string{"Bearer " + strings.Repeat("x", maxTokenBytes+1)}, codes.Unauthenticated, "at most 8192 are allowed", false, 0},
		"wrong":                {[]string{"Bearer wrong-Token.x"}, codes.Unauthenticated, "token [redacted] is refused", true, 0},
		"largest":              {[]string{"Bearer " + strings.Repeat("x", maxTokenBytes)}, codes.Unauthenticated, "token [redacted] is refused", true, 0},
		"not allowed to heal":  {[]string{"Bearer check-only"}, codes.OK, "may not heal", true, codes.Unauthenticated},
		"right":                {[]string{"Bearer " + goodToken}, codes.OK, "", true, 0},
		"right, lower case":    {[]string{"bearer " + goodToken}, codes.OK, "", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			conn := r.dial(t, trusting(), tc.authorization...)
			for call, invoke := range remoteCalls {
				before, healed := len(r.authorizer.questions()), len(h.volumes())
				want := tc.want
				switch {
				case call == "NodeHealer" && tc.heals != codes.OK:
					want = tc.heals
				case strings.HasPrefix(call, "unknown") && want == codes.OK:
					want = codes.Unimplemented
				}
				err := invoke(testContext(t), conn)
				if status.Code(err) != want || want == codes.Unauthenticated && !strings.Contains(err.Error(), tc.text) {
					t.Errorf("%s: got %v, want %v: %s", call, err, want, tc.text)
				}
				if asked := len(r.authorizer.questions()) - before; (asked == 1) != tc.judged || asked > 1 {
					t.Errorf("%s: the authorizer was asked %d times", call, asked)
				}
				if want == codes.Unauthenticated && len(h.volumes()) != healed {
					t.Errorf("%s: the healer was asked", call)
				}
			}
		})
	}
}

func TestVerbs(t *testing.T) {
	r := serveRemote(t, &fakeHealer{}, TLS{})
	conn := r.dial(t, trusting(), "Bearer "+goodToken)
	for call, invoke := range remoteCalls {
		before := len(r.authorizer.questions())
		_ = invoke(testContext(t), conn)
		want := VerbCheck + " " + goodToken
		if call == "NodeHealer" {
			want = VerbHeal + " " + goodToken
		}
		if got := r.authorizer.questions()[before:]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: the authorizer was asked for %q", call, got)
		}
	}
}

// Those on one machine are one source, until their connection is known.
func TestWhereCallsComeFrom(t *testing.T) {
	r := serveRemote(t, &fakeHealer{}, TLS{})
	known, stranger := r.dial(t, trusting(), "Bearer "+goodToken), r.dial(t, trusting(), "Bearer wrong")
	for range 2 {
		_ = remoteCalls["Identity"](testContext(t), known)
		_ = remoteCalls["Identity"](testContext(t), stranger)
	}
	r.authorizer.mu.Lock()
	defer r.authorizer.mu.Unlock()
	from := r.authorizer.from
	if len(from) != 4 || from[0] != "127.0.0.1" || from[1] != from[0] || from[3] != from[0] || !strings.HasPrefix(from[2], from[0]+":") {
		t.Errorf("calls come from %q", from)
	}
}

// Nothing of a token is ever written down, by us or by grpc.
func TestTokensAreNotLogged(t *testing.T) {
	logged := captureLog(t, "10")
	h := &fakeHealer{}
	r := serveRemote(t, h, TLS{})
	const secret = "s3cr3t-Token.payload.signature"
	r.authorizer.may["check-"+secret] = []string{VerbCheck}
	r.authorizer.may["panic-"+secret] = nil
	r.authorizer.during = func(_ context.Context, token string) {
		if strings.HasPrefix(token, "panic-") {
			panic("about " + token)
		}
	}
	for _, authorization := range []string{"Bearer " + secret, "Bearer check-" + secret, "Bearer panic-" + secret, "Basic " + secret, "Bearer " + secret + " x"} {
		conn := r.dial(t, trusting(), authorization)
		for call, invoke := range remoteCalls {
			if err := invoke(testContext(t), conn); err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the token is in the answer: %v", call, err)
			}
		}
	}
	if !strings.Contains(logged(), "Caller refused") {
		t.Errorf("the log does not tell of refused callers:\n%s", logged())
	}
	if strings.Contains(logged(), secret) {
		t.Errorf("the token is in the log:\n%s", logged())
	}
	if strings.Contains(grpcLog.String(), secret) {
		t.Error("the token is in grpc's log")
	}
}

// An authorizer that fails in whatever way lets nobody in.
func TestAuthorizerThatPanics(t *testing.T) {
	h := &fakeHealer{}
	r := serveRemote(t, h, TLS{})
	r.authorizer.during = func(context.Context, string) { panic("no") }
	for call, invoke := range remoteCalls {
		if err := invoke(testContext(t), r.dial(t, trusting(), "Bearer "+goodToken)); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: got %v", call, err)
		}
	}
	if len(h.volumes()) != 0 {
		t.Error("the healer was asked")
	}
}

func TestPlainTextIsRefused(t *testing.T) {
	logged := captureLog(t, "0")
	h := &fakeHealer{}
	r := serveRemote(t, h, TLS{})
	for call, invoke := range remoteCalls {
		if err := invoke(testContext(t), r.dial(t, nil, "Bearer "+goodToken)); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: got %v", call, err)
		}
	}
	if len(h.volumes()) != 0 || len(r.authorizer.questions()) != 0 {
		t.Error("somebody was asked")
	}
	why := func() bool { return strings.Contains(logged(), "first record does not look like a TLS handshake") }
	// The caller hears of it first.
	for deadline := time.Now().Add(time.Minute); !why() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if !why() {
		t.Errorf("the log does not say why:\n%s", logged())
	}
	// TLS without HTTP/2 is no way either: such connections are closed.
	for _, protocols := range [][]string{nil, {"http/1.1"}} {
		config := trusting()
		config.NextProtos = protocols
		conn, err := tls.Dial("tcp", r.address, config)
		if err != nil {
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a client that speaks %q was let in", protocols)
		}
		_ = conn.Close()
	}
}

// A call that is not authenticated is refused before its request is read.
func TestBodyIsNotReadBeforeTheToken(t *testing.T) {
	r := serveRemote(t, &fakeHealer{}, TLS{})
	req := goodRequest()
	req.VolumeContext = map[string]string{"k": strings.Repeat("v", 2*maxRequestBytes)}
	for token, want := range map[string]codes.Code{"wrong": codes.Unauthenticated, goodToken: codes.ResourceExhausted} {
		_, err := healerpb.NewHealerNodeClient(r.dial(t, trusting(), "Bearer "+token)).NodeHealer(testContext(t), req)
		if status.Code(err) != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

func TestStopEndsTCPToo(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	h := &fakeHealer{during: func(context.Context) { close(entered); <-release }}
	r := serveRemote(t, h, TLS{})
	conn := r.dial(t, trusting(), "Bearer "+goodToken)
	answered := make(chan error, 1)
	go func() { answered <- remoteCalls["NodeHealer"](testContext(t), conn) }()
	<-entered
	// One that is silent, and one that has not called yet: neither is waited for.
	silent, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	idle, err := tls.Dial("tcp", r.address, speakingHTTP2())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()
	stopped := make(chan error, 1)
	go func() { stopped <- r.server.Stop(testContext(t)) }()
	for !r.server.calls.draining() {
		time.Sleep(time.Millisecond)
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the running call: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", r.address); err == nil {
		_ = c.Close()
		t.Error("the address is still served")
	}
}

func TestTCPConfig(t *testing.T) {
	cfg := testConfig(&fakeHealer{})
	cfg.TCP = &TCP{}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "authorizer") {
		t.Errorf("got %v", err)
	}
	cfg.TCP = nil
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.ServeTCP(l); err == nil {
		t.Error("TCP is served without being configured")
	}
	for endpoint, want := range map[string]string{
		"tcp://127.0.0.1:9070":  "127.0.0.1:9070",
		"tcp://:9070":           ":9070",
		"tcp://[::1]:9070":      "[::1]:9070",
		"tcp://node.example:80": "node.example:80",
		"":                      "must be tcp://host:port",
		":9070":                 "must be tcp://host:port",
		"unix:///s":             "must be tcp://host:port",
		"tcp://9070":            "must be host:port",
		"tcp://host:":           "must be host:port",
	} {
		got, err := tcpAddress(endpoint)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || err == nil && got != want {
			t.Errorf("%q: got %q, want %q", endpoint, got, want)
		}
	}
}
