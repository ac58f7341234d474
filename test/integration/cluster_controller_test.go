package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
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
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/registration"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// reachable is a member whose server is reached through a gateway, as both are
// shipped.
type reachable struct {
	*member
	gateway *harness.Gateway
	// pod is the gateway's, args tell it so.
	pod  *corev1.Pod
	args []string
}

// newReachable starts both, the gateway with more arguments.
func newReachable(t *testing.T, args ...string) *reachable {
	t.Helper()
	r := newUnreached(t, newMember(t), args...)
	r.Start()
	r.startGateway()
	return r
}

// newUnreached starts neither.
func newUnreached(t *testing.T, m *member, args ...string) *reachable {
	t.Helper()
	r := &reachable{member: m, gateway: harness.NewGateway(m.Node, append([]string{"--node-id=" + thisNode}, args...)...)}
	r.newPod()
	r.api.Account(t, cluster.AddonsNamespace, cluster.AddonsAccount)
	return r
}

// newPod returns the gateway another pod, from its next start on.
func (r *reachable) newPod(change ...func(*corev1.Pod)) {
	r.T.Helper()
	if r.pod != nil {
		cluster.Delete(r.T, r.api, r.pod)
	}
	var kubeconfig string
	r.pod, kubeconfig = r.api.DaemonPod(r.T, ownNamespace, gatewayName, thisNode, change...)
	r.args = []string{"--kubeconfig=" + r.gateway.Own(kubeconfig), "--pod-name=" + r.pod.Name, "--pod-uid=" + string(r.pod.UID)}
}

func (r *reachable) startGateway(args ...string) {
	r.T.Helper()
	r.gateway.Start(append(r.args[:len(r.args):len(r.args)], args...)...)
}

// gatewayName is what the shipped manifests call the DaemonSet and its account.
const gatewayName = "node-healer-gateway"

// controllerToken is one for this node, as the shipped manifests expect it, of an account
// that they let heal.
func (r *reachable) controllerToken(options ...cluster.TokenOption) string {
	r.T.Helper()
	return r.token(cluster.AddonsNamespace, cluster.AddonsAccount, options...)
}

// token is an account's for this node.
func (r *reachable) token(namespace, account string, options ...cluster.TokenOption) string {
	r.T.Helper()
	return r.api.Token(r.T, namespace, account, append([]cluster.TokenOption{cluster.ForAudience(registration.Audience(thisNode))}, options...)...)
}

// dial connects as the controller does, which verifies nothing.
func (r *reachable) dial(token string) *grpc.ClientConn {
	r.T.Helper()
	with := func(ctx context.Context) context.Context {
		if token == "" {
			return ctx
		}
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	conn, err := grpc.NewClient(r.gateway.Address, grpc.WithTransportCredentials(credentials.NewTLS(trustful())),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			return r.unary(with(ctx), method, req, resp, cc, invoke, o...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			return stream(with(ctx), d, cc, method, o...)
		}))
	harness.Must(r.T, err)
	r.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

// unary makes a call, and makes it again while only a busy machine keeps it from its answer.
func (r *reachable) unary(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
	for begun := time.Now(); ; time.Sleep(harness.Pause(begun)) {
		err := invoke(ctx, method, req, resp, cc, o...)
		says := fmt.Sprint(err)
		if a, is := resp.(*healerpb.NodeHealerResponse); is && err == nil {
			says = a.GetMessage()
		}
		if ctx.Err() != nil || !r.IsTransient(says) {
			return err
		}
	}
}

func trustful() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
}

// The calls that a controller could make.
func identify(ctx context.Context, c *grpc.ClientConn) error {
	_, err := identity.NewIdentityClient(c).GetCapabilities(ctx, &identity.GetCapabilitiesRequest{})
	return err
}

func heal(v *claimed) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := healerpb.NewHealerNodeClient(c).NodeHealer(ctx, v.Request())
		return err
	}
}

func askHealth(ctx context.Context, c *grpc.ClientConn) error {
	_, err := grpc_health_v1.NewHealthClient(c).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

func watchHealth(ctx context.Context, c *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := grpc_health_v1.NewHealthClient(c).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

func reflect(ctx context.Context, c *grpc.ClientConn) error {
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
}

func unknownMethod(ctx context.Context, c *grpc.ClientConn) error {
	return c.Invoke(ctx, "/no.such/Method", &healerpb.NodeHealerRequest{}, &healerpb.NodeHealerResponse{})
}

// createCallers creates the accounts of TestTokensOverTCP in a namespace of their own:
// "unrelated" has no right, "checker" may only check on this node, and "elsewhere" may
// heal and check, on node-2 only.
func (r *reachable) createCallers(t *testing.T) (namespace string) {
	t.Helper()
	namespace = r.api.Namespace(t)
	for account, rule := range map[string]*rbacv1.PolicyRule{
		"unrelated": nil,
		"checker":   {Verbs: []string{"check"}, ResourceNames: []string{thisNode}},
		"elsewhere": {Verbs: []string{"heal", "check"}, ResourceNames: []string{"node-2"}},
	} {
		r.api.Account(t, namespace, account)
		if rule != nil {
			rule.APIGroups, rule.Resources = []string{"csi-addons.io"}, []string{"nodehealers"}
			r.api.Grant(t, namespace, account, *rule)
		}
	}
	return namespace
}

// TestTokensOverTCP tries every kind of token with every kind of call, with the
// shipped roles.
func TestTokensOverTCP(t *testing.T) {
	r := newReachable(t)
	v := r.newClaimed("ext4", "called")
	callers := r.createCallers(t)
	good := r.controllerToken()
	for name, tc := range map[string]struct {
		token string
		says  string // why it is refused; empty: it is not
	}{
		"none":            {token: "", says: "no bearer token"},
		"not a token":     {token: "spaced out", says: "characters that no token has"},
		"unknown":         {token: "abc.def.ghi", says: "the token is refused by the Kubernetes API"},
		"tampered with":   {token: good[:len(good)-8] + "AAAAAAAA", says: "the token is refused by the Kubernetes API"},
		"expired":         {token: r.controllerToken(cluster.Ending(-time.Hour)), says: "the token is refused by the Kubernetes API"},
		"wrong audience":  {token: r.controllerToken(cluster.ForAudience("another")), says: "is for another audience"},
		"another node's":  {token: r.controllerToken(cluster.ForAudience(registration.Audience("node-2"))), says: "is for another audience"},
		"the API's":       {token: r.controllerToken(cluster.ForAudience()), says: "is for another audience"},
		"wrong account":   {token: r.token(callers, "unrelated"), says: "kubectl auth can-i --list"},
		"of another node": {token: r.token(callers, "elsewhere"), says: "may not check on node node-1"},
		"may only check":  {token: r.token(callers, "checker")},
		"right":           {token: good},
	} {
		t.Run(name, func(t *testing.T) {
			r.tryEachCall(t, v, tc.token, tc.says)
			if log := r.Log.String() + r.gateway.Log.String(); tc.token != "" && strings.Contains(log, tc.token) {
				t.Error("the token is in a log")
			}
		})
	}
	r.kubectlLists(t, callers, map[string]string{"unrelated": "", "elsewhere": "[node-2] [heal check]", "checker": "[node-1] [check]"})
	// Nothing of what is said in plain text gets through.
	plain, err := grpc.NewClient(r.gateway.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	harness.Must(t, err)
	defer plain.Close()
	if err := askHealth(within(t), plain); status.Code(err) != codes.Unavailable {
		t.Errorf("in plain text: %v", err)
	}
}

// tryEachCall makes every kind of call with the token. Each is refused for the reason
// says; if that is empty, the gateway passes on what it offers.
func (r *reachable) tryEachCall(t *testing.T, v *claimed, token, says string) {
	t.Helper()
	conn := r.dial(token)
	for name, call := range map[string]struct {
		invoke func(context.Context, *grpc.ClientConn) error
		want   codes.Code // with a token that is good
	}{
		"heal":           {invoke: heal(v), want: codes.OK},
		"identity":       {invoke: identify, want: codes.OK},
		"reflection":     {invoke: reflect, want: codes.OK},
		"health":         {invoke: askHealth, want: codes.Unimplemented},
		"stream":         {invoke: watchHealth, want: codes.Unimplemented},
		"unknown method": {invoke: unknownMethod, want: codes.Unimplemented},
	} {
		want, why := call.want, says
		if says != "" {
			want = codes.Unauthenticated
		}
		if name == "heal" {
			why = strings.Replace(says, "not check", "not heal", 1)
		}
		var err error
		harness.Eventually(t, name+" is answered", func() bool { // a stream is not made again
			err = call.invoke(within(t), conn)
			return !r.IsTransient(fmt.Sprint(err))
		})
		if status.Code(err) != want || why != "" && !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v, want %v: %s", name, err, want, why)
		}
	}
}

// kubectlLists compares what a refused caller is told to look at, kubectl auth can-i
// --list, with the node names and verbs that each account has.
func (r *reachable) kubectlLists(t *testing.T, namespace string, accounts map[string]string) {
	t.Helper()
	for account, want := range accounts {
		list := r.api.Kubectl(t, "auth", "can-i", "--list", "--as=system:serviceaccount:"+namespace+":"+account)
		got := ""
		for line := range strings.Lines(list) {
			if rest, ok := strings.CutPrefix(line, "nodehealers.csi-addons.io "); ok {
				got = strings.Join(strings.Fields(rest)[1:], " ")
			}
		}
		if got != want {
			t.Errorf("kubectl lists for %s: %q, want %q\n%s", account, got, want, list)
		}
	}
}

// TestTokenAudience accepts tokens for the node, and for one more audience if told so.
func TestTokenAudience(t *testing.T) {
	r := newReachable(t, "--token-audience=node-healer")
	const says = `this server takes tokens for ["node-healer.csi-addons.io/node-1" "node-healer"]`
	for token, says := range map[string]string{
		r.controllerToken(): "",
		r.controllerToken(cluster.ForAudience("node-healer")):               "",
		r.controllerToken(cluster.ForAudience("another", "node-healer")):    "",
		r.controllerToken(cluster.ForAudience()):                            says,
		r.controllerToken(cluster.ForAudience("https://node-healer.other")): says,
	} {
		err := identify(within(t), r.dial(token))
		if says == "" && err != nil || says != "" && (status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), says)) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// TestRightsThatChange shows that changed rights count soon, also on open connections.
func TestRightsThatChange(t *testing.T) {
	r := newReachable(t)
	ns := r.api.Namespace(t)
	r.api.Account(t, ns, "caller")
	conn := r.dial(r.token(ns, "caller"))
	if err := identify(within(t), conn); status.Code(err) != codes.Unauthenticated {
		t.Fatalf("without a right: %v", err)
	}
	t.Run("given", func(t *testing.T) {
		r.api.Grant(t, ns, "caller", rbacv1.PolicyRule{APIGroups: []string{"csi-addons.io"}, Resources: []string{"nodehealers"}, Verbs: []string{"check"}})
		harness.Eventually(t, "the right counts", func() bool { return identify(within(t), conn) == nil })
	})
	harness.Eventually(t, "the right counts no more", func() bool { return status.Code(identify(within(t), conn)) == codes.Unauthenticated })
}

// TestUnauthenticatedWithoutTheAPI refuses every caller while the API is gone or does not
// answer; the socket still answers.
func TestUnauthenticatedWithoutTheAPI(t *testing.T) {
	r := newReachable(t)
	v := r.newClaimed("ext4", "alone")
	conn := r.dial(r.controllerToken())
	if err := identify(within(t), conn); err != nil {
		t.Fatal(err)
	}
	r.Transient = nil
	for name, outage := range map[string]struct{ begin, end func(testing.TB) }{
		"gone": {r.api.KillAPI, r.api.StartAPI},
		"hung": {r.api.PauseAPI, r.api.ResumeAPI},
	} {
		t.Run(name, func(t *testing.T) {
			fresh := r.controllerToken()
			outage.begin(t)
			err := identify(within(t), r.dial(fresh))
			if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "cannot be asked") {
				t.Errorf("a token that was not reviewed: %v", err)
			}
			r.Expect("healthy", v.Request())
			outage.end(t)
			harness.Eventually(t, "the controller is let in again", func() bool { return identify(within(t), r.dial(fresh)) == nil })
		})
	}
}

// TestCertificateThatIsReplaced serves the new one to the next connection.
func TestCertificateThatIsReplaced(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeCertificate(t, cert, key, "first")
	r := newUnreached(t, newMember(t))
	r.Start()
	own := func() []string {
		return []string{"--tls-cert=" + r.gateway.Own(cert), "--tls-key=" + r.gateway.Own(key), "--tls-min-version=VersionTLS13"}
	}
	r.startGateway(own()...)
	old := r.dial(r.controllerToken())
	for _, name := range []string{"first", "second"} {
		writeCertificate(t, cert, key, name)
		own()
		harness.Eventually(t, "the certificate is the "+name, func() bool {
			conn, err := tls.Dial("tcp", r.gateway.Address, trustful())
			harness.Must(t, err)
			defer conn.Close()
			return conn.ConnectionState().PeerCertificates[0].Subject.CommonName == name
		})
		if err := identify(within(t), old); err != nil {
			t.Errorf("a connection that was open: %v", err)
		}
	}
}

func writeCertificate(t *testing.T, certFile, keyFile, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harness.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	harness.Must(t, err)
	plain, err := x509.MarshalPKCS8PrivateKey(key)
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	harness.Must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: plain}), 0o600))
}
