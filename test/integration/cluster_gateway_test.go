package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestCallersIdentity follows the caller's name from the token to the audit log, and
// lets a caller with the verb check only check.
func TestCallersIdentity(t *testing.T) {
	r := newReachable(t)
	ns := r.api.Namespace(t)
	r.api.Account(t, ns, "checker")
	r.api.Grant(t, ns, "checker", rbacv1.PolicyRule{APIGroups: []string{"csi-addons.io"}, Resources: []string{"nodehealers"}, Verbs: []string{"check"}})
	v := r.lost("forwarded")
	call := func(token string) string {
		t.Helper()
		answer, err := healerpb.NewHealerNodeClient(r.dial(token)).NodeHealer(within(t), v.Request())
		harness.Must(t, err)
		return answer.GetMessage()
	}
	callers := func() (found []string) {
		t.Helper()
		log, err := os.ReadFile(filepath.Join(r.StateDir(), "audit.log"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			_, caller, _ := strings.Cut(line, `"caller":"`)
			caller, _, _ = strings.Cut(caller, `"`)
			found = append(found, caller)
		}
		return found
	}
	for range 2 {
		if says := call(r.token(ns, "checker")); !strings.HasPrefix(says, "abnormal: ") || !strings.Contains(says, "The call only checks; would try: ") {
			t.Errorf("one who may only check hears %q", says)
		}
	}
	if found := callers(); len(found) > 0 {
		t.Errorf("a check is in the audit log, of %q", found)
	}
	if says := call(r.controllerToken()); !strings.HasPrefix(says, "healed: ") {
		t.Errorf("the controller hears %q", says)
	}
	v.Lose()
	r.Expect("healed", v.Request())
	account := "system:serviceaccount:" + cluster.AddonsNamespace + ":" + cluster.AddonsAccount
	if got, want := fmt.Sprint(callers()), fmt.Sprint([]string{account, account, "uid 0", "uid 0"}); got != want {
		t.Errorf("the audit log has %s, want %s", got, want)
	}
	if log := r.Log.String(); !strings.Contains(log, `caller="`+account+`"`) {
		t.Error("the log does not say who called")
	}
}

// TestGatewaySocketIsForItsUIDOnly tries both sockets with other uids, root's
// included.
func TestGatewaySocketIsForItsUIDOnly(t *testing.T) {
	r := newUnreached(t, newMember(t))
	r.Start()
	v := r.newClaimed("ext4", "posed")
	heals := metadata.Pairs(forwarded.Caller, "root", forwarded.Verb, forwarded.VerbHeal)
	conn, err := grpc.NewClient(r.gateway.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	harness.Must(t, err)
	defer conn.Close()
	err = heal(v)(metadata.NewOutgoingContext(within(t), heals), conn)
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "--gateway-uid") {
		t.Errorf("root on the gateway's socket: %v", err)
	}
	for path, want := range map[string]os.FileMode{r.gateway.Socket(): 0o660, filepath.Dir(r.gateway.Socket()): 0o750} {
		info, err := os.Stat(strings.TrimPrefix(path, "unix:"))
		harness.Must(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", path, info.Mode().Perm(), want)
		}
	}
}

// TestMetricsThroughTheGateway reads a node's metrics over TLS, with the shipped role and
// without.
func TestMetricsThroughTheGateway(t *testing.T) {
	r := newUnreached(t, newMember(t))
	url := "https://" + r.gateway.ServeMetrics() + "/metrics"
	r.Start()
	r.startGateway()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trustful()}}
	defer client.CloseIdleConnections()
	try := func(token string) (code int, page string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		harness.Must(t, err)
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := client.Do(request)
		harness.Must(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		harness.Must(t, err)
		return answer.StatusCode, string(body)
	}
	get := func(token string) (code int, page string) {
		t.Helper()
		harness.Eventually(t, "the gateway hears from the API in time", func() bool {
			code, page = try(token)
			return code != http.StatusServiceUnavailable
		})
		return code, page
	}
	ns := r.api.Namespace(t)
	for _, account := range []string{"prometheus", "another"} {
		r.api.Account(t, ns, account)
	}
	r.api.BindRole(t, ns, "prometheus", "node-healer-metrics")
	prometheus := r.api.Token(t, ns, "prometheus")
	harness.Eventually(t, "the binding counts", func() bool { code, _ := get(prometheus); return code == http.StatusOK })
	if code, page := get(prometheus); code != http.StatusOK || !strings.Contains(page, "\nnode_healer_build_info{") {
		t.Errorf("with the role: %d: %s", code, page)
	}
	for name, tc := range map[string]struct {
		token string
		code  int
		says  string
	}{
		"without the role": {r.api.Token(t, ns, "another"), http.StatusForbidden, "another may not get /metrics"},
		"a caller of heal": {r.controllerToken(cluster.ForAudience()), http.StatusForbidden, "may not get /metrics"},
		"a node's token":   {r.token(ns, "prometheus"), http.StatusUnauthorized, "the token is refused by the Kubernetes API"},
		"no token":         {"", http.StatusUnauthorized, "no bearer token"},
		"no such token":    {"made.up", http.StatusUnauthorized, "the token is refused"},
	} {
		if code, page := get(tc.token); code != tc.code || !strings.Contains(page, tc.says) || strings.Contains(page, "node_healer_") {
			t.Errorf("%s: %d: %s", name, code, page)
		}
	}
}

// TestPrivilegedProcessHasNoListener finds no network socket of the server and its
// workers.
func TestPrivilegedProcessHasNoListener(t *testing.T) {
	r := newReachable(t)
	v := r.newClaimed("ext4", "unreachable")
	harness.Must(t, heal(v)(within(t), r.dial(r.controllerToken())))
	r.Expect("healthy", v.Request())
	out, err := exec.Command("ss", "--no-header", "--numeric", "--processes", "--listening", "--tcp", "--udp", "--raw", "--packet", "--sctp").Output()
	harness.Must(t, err)
	listens := func(pid int) bool { return strings.Contains(string(out), fmt.Sprintf("pid=%d,", pid)) }
	for _, pid := range append(r.Workers(), r.PID()) {
		if listens(pid) {
			t.Errorf("process %d listens on the network:\n%s", pid, out)
		}
	}
	if !listens(r.gateway.PID()) {
		t.Errorf("ss does not even see the gateway:\n%s", out)
	}
}
