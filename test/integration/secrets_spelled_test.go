package integration

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// oddSecret reads differently in each spelling.
const oddSecret = `c4n4ry/"0f"+&<s3cr3t> `

// spelled are the spellings in which drivers and their libraries quote a secret.
func spelled(secret string) map[string]string {
	quoted, _ := json.Marshal(secret)
	return map[string]string{
		"as it is": secret, "URL-encoded": url.QueryEscape(secret), "in a path": url.PathEscape(secret), "JSON-escaped": string(quoted[1 : len(quoted)-1]),
		"base64": base64.StdEncoding.EncodeToString([]byte(secret)), "base64 for URLs": base64.RawURLEncoding.EncodeToString([]byte(secret)),
	}
}

// quotes is what a driver says that quotes a secret in the spellings that differ most, one
// at a time: texts are cut.
func quotes(secret string) (all []string) {
	for _, how := range []string{"URL-encoded", "JSON-escaped", "base64"} {
		all = append(all, "login with "+spelled(secret)[how]+" failed")
	}
	return all
}

// quotesNothing fails the test where a text has a secret, in any spelling, or a half of it.
func quotesNothing(t *testing.T, secret, where, text string) {
	t.Helper()
	for how, s := range spelled(secret) {
		if strings.Contains(text, s[:len(s)/2]) {
			t.Errorf("%s has the secret %s: %s", where, how, text)
		}
	}
}

// keptNothing looks for a secret in all that the node's server has written.
func keptNothing(t *testing.T, n *harness.Node, secret string) {
	t.Helper()
	quotesNothing(t, secret, "the log", n.Log.String())
	for _, e := range auditOf(t, n) {
		quotesNothing(t, secret, "the audit log", e.Outcome)
	}
	records, err := filepath.Glob(n.StateDir() + "/records/*")
	harness.Must(t, err)
	for _, r := range records {
		raw, err := os.ReadFile(r)
		harness.Must(t, err)
		quotesNothing(t, secret, r, string(raw))
	}
}

const seeDriversLog = "see the log of the driver's pod on this node"

// TestSecretsInAnySpelling has a driver quote the secrets that it was called with, as its
// libraries spell them: the answer has the method, the code, the tier and where to read on.
func TestSecretsInAnySpelling(t *testing.T) {
	for method, step := range map[string]string{"NodeStageVolume": "restage of ", "NodeHealer": "delegate of "} {
		t.Run(method, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--restage-driver="+harness.Driver+"=unmount-first", "-v=4")
			socket := filepath.Join(n.Dir, "metrics.sock")
			n.Args = append(n.Args, "--metrics-socket=unix://"+socket)
			d := n.NewCSIDriver(csidriver.Mode{NoAddons: method == "NodeStageVolume"})
			v := d.NewVolume("spelled")
			request := d.Request(v)
			request.Secrets, request.VolumeContext = map[string]string{"userKey": oddSecret}, nil
			for _, text := range quotes(oddSecret) {
				d.Behave(csidriver.Mode{})
				d.Call(d.Stages(v))
				v.Unpublish()
				v.Publish(harness.PodUID)
				n.Start() // another server: it knows of no earlier answer
				n.Expect("healthy", request)
				d.KillDaemon(v)
				d.Behave(csidriver.Mode{Stage: csidriver.NeverBare, Answers: map[string]csidriver.Answer{method: {Code: codes.Internal, Text: text}}})
				said := n.Message(request)
				if !saysAll(said, step, method+": INTERNAL: retriable; "+seeDriversLog) {
					t.Errorf("a driver answers %q: %s", text, said)
				}
				quotesNothing(t, oddSecret, "the answer", said)
				quotesNothing(t, oddSecret, "the metrics", harness.Scrape(t, socket))
				n.Stop()
			}
			keptNothing(t, n, oddSecret)
		})
	}
}
