package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// The tokens that the fake API accepts.
const (
	healing  = "may.heal"
	checking = "may.check"
	nothing  = "may.nothing"
	// otherNode and forAPI may heal, too, but are for another node's gateway, and for the
	// API server.
	otherNode = "other.node"
	forAPI    = "for.api"
	// apiAudience is the API server's.
	apiAudience = "https://kubernetes.default.svc"
	// rightsOutage is of a user about whose rights the API does not answer.
	rightsOutage = "outage.of.rights"
)

func fakeTokens(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	audiences, limited := authenticator.AudiencesFrom(ctx)
	if !limited {
		audiences = authenticator.Audiences{apiAudience}
	}
	switch token {
	case otherNode:
		return &authenticator.Response{User: &user.DefaultInfo{Name: healing}}, audiences.Has(registration.Audience("node-2")), nil
	case forAPI:
		return &authenticator.Response{User: &user.DefaultInfo{Name: healing}}, audiences.Has(apiAudience), nil
	case healing, checking, nothing, rightsOutage:
		return &authenticator.Response{User: &user.DefaultInfo{Name: token}}, true, nil
	case "other.audience":
		return nil, false, nil
	case "outage":
		return nil, false, errRefused
	case "too.many":
		return nil, false, errTooMany
	case "denied":
		return nil, false, apierrors.NewForbidden(registration.CSIAddonsNodes.GroupResource(), "", errors.New("no"))
	default:
		return nil, false, fmt.Errorf("invalid bearer token %s", token)
	}
}

// errRefused is that of client-go when nothing listens.
var errRefused = &url.Error{Op: "Post", URL: "https://api", Err: errors.New("connection refused")}

func fakeRights(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == rightsOutage {
		return authorizer.DecisionNoOpinion, "", errRefused
	}
	if a.GetAPIGroup() != "csi-addons.io" || a.GetResource() != "nodehealers" || a.GetName() != "node-1" || !a.IsResourceRequest() {
		return authorizer.DecisionDeny, "", fmt.Errorf("asked for %+v", a)
	}
	switch a.GetUser().GetName() + " " + a.GetVerb() {
	case healing + " heal", healing + " check", checking + " check":
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

type rights func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error)

func (r rights) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return r(ctx, a)
}

func (r rights) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(r(ctx, a))
}

func (rights) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

func fakeCallers() *Callers {
	return &Callers{
		node: "node-1", audiences: authenticator.Audiences{registration.Audience("node-1")},
		tokens: authenticator.TokenFunc(fakeTokens), rights: rights(fakeRights),
	}
}

// nodeServer is the server behind the socket, and keeps the metadata of each call.
type nodeServer struct {
	healerpb.UnimplementedHealerNodeServer

	mu    sync.Mutex
	heard []metadata.MD
	err   error
	// trailer is sent with each answer.
	trailer metadata.MD
	// wait runs before a call of a caller with the verb is answered.
	wait func(verb string)
}

func (n *nodeServer) NodeHealer(ctx context.Context, req *healerpb.NodeHealerRequest) (*healerpb.NodeHealerResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if n.wait != nil {
		n.wait(md.Get(forwarded.Verb)[0])
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = append(n.heard, md)
	_ = grpc.SetTrailer(ctx, n.trailer)
	return &healerpb.NodeHealerResponse{Message: "healthy: " + req.GetVolumeId()}, n.err
}

type identifier struct {
	identity.UnimplementedIdentityServer
}

func (identifier) GetIdentity(context.Context, *identity.GetIdentityRequest) (*identity.GetIdentityResponse, error) {
	return &identity.GetIdentityResponse{Name: "healer.example.com"}, nil
}

// told returns the name and verb of the caller of each call.
func (n *nodeServer) told() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []string
	for _, md := range n.heard {
		all = append(all, strings.Join(md.Get(forwarded.Caller), "+")+" "+strings.Join(md.Get(forwarded.Verb), "+"))
	}
	return strings.Join(all, "; ")
}

// world is a gateway between a client's address and a server.
type world struct {
	t       *testing.T
	server  *nodeServer
	address string
}

func newWorld(t *testing.T, profile TLS) *world {
	t.Helper()
	w := &world{t: t, server: &nodeServer{}}
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	behind := grpc.NewServer(grpc.MaxConcurrentStreams(32)) // as the real one
	healerpb.RegisterHealerNodeServer(behind, w.server)
	grpc_health_v1.RegisterHealthServer(behind, health.NewServer()) // which the gateway does not offer
	identity.RegisterIdentityServer(behind, identifier{})
	go func() { _ = behind.Serve(listener) }()
	t.Cleanup(behind.Stop)
	w.serve(socket, profile)
	return w
}

// serve runs a gateway to a socket.
func (w *world) serve(socket string, profile TLS) {
	w.t.Helper()
	g, err := New(Config{Socket: "unix://" + socket, Callers: fakeCallers(), TLS: profile})
	must(w.t, err)
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	must(w.t, err)
	w.address = outside.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx, outside) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// anyone trusts every certificate, as the CSI-Addons controller does.
func anyone() *tls.Config { return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} }

func (w *world) dial() *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient(w.address, grpc.WithTransportCredentials(credentials.NewTLS(anyone())))
	must(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// with is the context of a call with a token, and with more that the caller says.
func with(t *testing.T, token string, more ...string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if token != "" {
		more = append(more, "authorization", "Bearer "+token)
	}
	return metadata.AppendToOutgoingContext(ctx, more...)
}

// sees compares an error with the row, details included.
func (r StatusRow) sees(t *testing.T, err error, says string) {
	t.Helper()
	s := status.Convert(err)
	var info *errdetails.ErrorInfo
	var retry time.Duration
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	known := map[string]string{"tier": string(r.Class.Tier), "error_type": string(r.Class.Type)}
	if s.Code() != r.Code || !strings.Contains(s.Message(), says) || info.GetReason() != r.Reason || info.GetDomain() != api.ErrorDomain ||
		!maps.Equal(info.GetMetadata(), known) || (retry > 0) != (r.Class.Tier != api.Terminal) {
		t.Errorf("got %v, %v, retry %s; want %+v and %q", s, info, retry, r, says)
	}
}

// TestOnlyTheContractsCodes: what the gateway says of its own, too, is one of the six.
func TestOnlyTheContractsCodes(t *testing.T) {
	contract := []codes.Code{codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.Aborted, codes.Unauthenticated, codes.Unknown}
	for _, r := range StatusRows() {
		if !slices.Contains(contract, r.Code) {
			t.Errorf("%s is not in the contract", r.Code)
		}
	}
}

func TestCallersAreAuthorized(t *testing.T) {
	for name, tc := range map[string]struct {
		token  string
		told   string // of the caller, to the server
		status StatusRow
		says   string // to the caller
	}{
		"healing":       {token: healing, told: healing + " heal"},
		"checking":      {token: checking, told: checking + " check"}, // answered, and nothing is healed
		"neither":       {token: nothing, status: credentialsRefused, says: "may.nothing may not heal on node node-1"},
		"no token":      {status: credentialsRefused, says: "no bearer token"},
		"no such token": {token: "a.b.c", status: credentialsRefused, says: "the token is refused by the Kubernetes API: invalid bearer token [redacted]"},
		"another node's": {
			token: otherNode, status: credentialsRefused,
			says: `is for another audience: this server takes tokens for ["node-healer.csi-addons.io/node-1"]`,
		},
		"the API server's": {token: forAPI, status: credentialsRefused, says: "is for another audience"},
		"another audience": {token: "other.audience", status: credentialsRefused, says: "is for another audience"},
		"the API is gone":  {token: "outage", status: callerNotChecked, says: "cannot be asked about callers now"},
		"it went between":  {token: rightsOutage, status: callerNotChecked, says: "cannot be asked about callers now"},
		"too many tokens":  {token: "too.many", status: callerNotChecked, says: "too many tokens"},
		"it denies us":     {token: "denied", status: credentialsRefused, says: "does not let the gateway ask about callers"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, TLS{})
			conn := w.dial()
			answer, err := healerpb.NewHealerNodeClient(conn).NodeHealer(with(t, tc.token), &healerpb.NodeHealerRequest{VolumeId: "v"})
			switch {
			case tc.says == "" && (err != nil || answer.GetMessage() != "healthy: v"):
				t.Errorf("got %v, %v", answer, err)
			case tc.says != "":
				tc.status.sees(t, err, tc.says)
			}
			if got := w.server.told(); got != tc.told {
				t.Errorf("the server was told %q, want %q", got, tc.told)
			}
			_, err = identity.NewIdentityClient(conn).GetIdentity(with(t, tc.token), &identity.GetIdentityRequest{})
			if (err == nil) != (tc.says == "") {
				t.Errorf("identity: %v", err)
			}
			for _, method := range []string{"/no.such/Method", grpc_health_v1.Health_Check_FullMethodName, grpc_health_v1.Health_Watch_FullMethodName} {
				err = conn.Invoke(with(t, tc.token), method, &healerpb.NodeHealerRequest{}, &healerpb.NodeHealerResponse{})
				if want := map[bool]codes.Code{true: codes.Unimplemented, false: codes.Unauthenticated}[tc.says == ""]; status.Code(err) != want {
					t.Errorf("%s: %v, want %v", method, err, want)
				}
			}
		})
	}
}

// TestNothingElseIsPassedOn: what a caller says of itself is not what the server
// believes, and the token stays here.
func TestNothingElseIsPassedOn(t *testing.T) {
	w := newWorld(t, TLS{})
	ctx := with(t, checking, forwarded.Caller, "root", forwarded.Verb, "heal", "x-other", "y")
	_, err := healerpb.NewHealerNodeClient(w.dial()).NodeHealer(ctx, &healerpb.NodeHealerRequest{VolumeId: "v"})
	must(t, err)
	if got := w.server.told(); got != checking+" check" {
		t.Errorf("the server was told %q", got)
	}
	for _, key := range []string{"authorization", "x-other"} {
		if got := w.server.heard[0].Get(key); len(got) > 0 {
			t.Errorf("%s was passed on: %q", key, got)
		}
	}
}

func TestCodesComeBack(t *testing.T) {
	w := newWorld(t, TLS{})
	client := healerpb.NewHealerNodeClient(w.dial())
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		detailed, err := status.New(code, "because of "+code.String()).WithDetails(&errdetails.ErrorInfo{Reason: "R"})
		must(t, err)
		w.server.err = detailed.Err()
		_, err = client.NodeHealer(with(t, healing), &healerpb.NodeHealerRequest{VolumeId: "v"})
		if !proto.Equal(status.Convert(err).Proto(), detailed.Proto()) {
			t.Errorf("%v became %v", code, err)
		}
	}
	w.server.err = nil
	_, err := client.NodeHealer(with(t, healing), &healerpb.NodeHealerRequest{VolumeId: strings.Repeat("v", maxRequestBytes)})
	if status.Code(err) != codes.ResourceExhausted { // gRPC's own, as of the server
		t.Errorf("a request that is too large: %v", err)
	}
}

// TestStatusesWithoutDetails are of gRPC, on the way to the server: they become codes of
// the contract, but for those that the caller's own context or another contract brings.
func TestStatusesWithoutDetails(t *testing.T) {
	w := newWorld(t, TLS{})
	client := healerpb.NewHealerNodeClient(w.dial())
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		w.server.err = status.Error(code, "because of "+code.String())
		_, err := client.NodeHealer(with(t, healing), &healerpb.NodeHealerRequest{VolumeId: "v"})
		switch {
		case code == codes.Unavailable, code == codes.ResourceExhausted:
			nodeHealerUnreachable.sees(t, err, "cannot be reached: because of "+code.String())
		case slices.Contains(ownCodes, code):
			if !proto.Equal(status.Convert(err).Proto(), status.Convert(w.server.err).Proto()) {
				t.Errorf("%v became %v", code, err)
			}
		default:
			operationFailed.sees(t, err, "because of "+code.String())
		}
	}
}

func TestServerThatIsGone(t *testing.T) {
	w := &world{t: t}
	w.serve(filepath.Join(t.TempDir(), "none"), TLS{})
	_, err := healerpb.NewHealerNodeClient(w.dial()).NodeHealer(with(t, healing), &healerpb.NodeHealerRequest{})
	nodeHealerUnreachable.sees(t, err, "no such file")
}

// TestServerThatStandsStill for longer than the pause between two attempts to reach it.
func TestServerThatStandsStill(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	behind := grpc.NewServer()
	healerpb.RegisterHealerNodeServer(behind, &nodeServer{})
	t.Cleanup(behind.Stop)
	time.AfterFunc(3*reconnectDelay, func() { _ = behind.Serve(listener) })
	w := &world{t: t}
	w.serve(socket, TLS{})
	if _, err := healerpb.NewHealerNodeClient(w.dial()).NodeHealer(with(t, healing), &healerpb.NodeHealerRequest{}); err != nil {
		t.Error(err)
	}
}

func TestBearerTokens(t *testing.T) {
	for name, tc := range map[string]struct {
		values []string
		want   string
		says   string
	}{
		"one":             {[]string{"Bearer a.b-c_d~e+f/g=="}, "a.b-c_d~e+f/g==", ""},
		"lower case":      {[]string{"bearer x"}, "x", ""},
		"none":            {nil, "", "no bearer token"},
		"two":             {[]string{"Bearer a", "Bearer b"}, "", "more than one"},
		"another scheme":  {[]string{"Basic a"}, "", "not a bearer token"},
		"empty":           {[]string{"Bearer "}, "", "empty"},
		"only padding":    {[]string{"Bearer =="}, "", "empty"},
		"two words":       {[]string{"Bearer a b"}, "", "characters that no token has"},
		"not of ASCII":    {[]string{"Bearer ä"}, "", "characters that no token has"},
		"padding within":  {[]string{"Bearer a=b"}, "", "characters that no token has"},
		"as long as may":  {[]string{"Bearer " + strings.Repeat("a", maxTokenBytes)}, strings.Repeat("a", maxTokenBytes), ""},
		"longer than may": {[]string{"Bearer " + strings.Repeat("a", maxTokenBytes+1)}, "", "at most 8192"},
	} {
		got, err := bearerToken(tc.values)
		if got != tc.want || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestTokensHaveALimit(t *testing.T) {
	c := fakeCallers()
	asked, begun := 0, time.Now()
	c.tokens = limit(authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		asked++
		return fakeTokens(ctx, token)
	}))
	refused := 0
	for range 10 * reviewBurst {
		if _, err := c.authorizeCall(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer made.up")), "/x/Y"); errors.Is(err, errTooMany) {
			refused++
		}
	}
	if most := reviewBurst + int(1+time.Since(begun).Seconds())*reviewsPerSecond; asked > most || refused != 10*reviewBurst-asked {
		t.Errorf("the API was asked %d times, at most %d are allowed; %d callers heard of it", asked, most, refused)
	}
}
