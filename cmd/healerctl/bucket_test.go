package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/yaml"
)

// Each reads differently in each spelling.
const (
	canaryID    = "AKIAc4n4ry/ID+0"
	canaryKey   = `k3y-c4n4ry/"0f"+&<s3cr3t>==`
	canaryToken = `t0ken-c4n4ry/"0f"+&<s3cr3t>==`
)

// fakeS3 answers each question with the next of its answers, and with the last one ever after.
type fakeS3 struct {
	*httptest.Server

	answers []string // a code of S3, or a list
	asked   atomic.Int32
}

func newFakeS3(t *testing.T, answers ...string) *fakeS3 {
	t.Helper()
	f := &fakeS3{answers: answers}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Its clock is that of who asks.
	if asked, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")); err == nil {
		w.Header().Set("Date", asked.Format(http.TimeFormat))
	}
	n := int(f.asked.Add(1))
	if answer := f.answers[min(n, len(f.answers))-1]; answer != "list" {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", answer)
		return
	}
	_, _ = fmt.Fprint(w, "<ListBucketResult/>")
}

// secretDir writes the Secret of a BucketAccess. A file of the name "" is not written.
func secretDir(t *testing.T, endpoint string, further map[string]string) string {
	t.Helper()
	files := map[string]string{
		"COSI_PROTOCOL": "S3", "COSI_S3_BUCKET_ID": "data", "COSI_S3_ENDPOINT": endpoint, "COSI_S3_REGION": "us-east-1", "COSI_S3_ADDRESSING_STYLE": "path",
		"COSI_S3_ACCESS_KEY_ID": canaryID, "COSI_S3_ACCESS_SECRET_KEY": canaryKey,
	}
	maps.Copy(files, further)
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func checkBucket(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errors bytes.Buffer
	code = run(ctx, append([]string{"healerctl", "check", "bucket"}, args...), &out, &errors)
	return code, out.String(), errors.String()
}

func TestCheckBucket(t *testing.T) {
	s := newFakeS3(t, "list")
	refuses := newFakeS3(t, "InvalidAccessKeyId")
	odd := newFakeS3(t, "NoSuchKey")
	for _, c := range []struct {
		args   []string
		code   int
		stdout string
	}{
		{
			args:   []string{"--secret-dir", secretDir(t, s.URL, nil)},
			stdout: "healthy: 200, a list\n",
		},
		{
			args:   []string{"--secret-dir", secretDir(t, refuses.URL, nil)},
			code:   exitAbnormal,
			stdout: "abnormal: CredentialsRefused (403, InvalidAccessKeyId). To do: issue new",
		},
		{
			args:   []string{"--secret-dir", secretDir(t, odd.URL, nil)},
			code:   exitNoAnswer,
			stdout: "not judged: 403, and no code that is known here\n",
		},
		{args: []string{"--secret-dir", t.TempDir()}, code: exitNoAnswer, stdout: "not judged: "},
		{
			args:   []string{"--secret-dir", secretDir(t, s.URL, map[string]string{"COSI_PROTOCOL": "GCS"})},
			code:   exitNoAnswer,
			stdout: "not judged: COSI_PROTOCOL is not S3: all else (Azure, GCS) is not supported\n",
		},
		{code: exitUsage},
		{args: []string{"--secret-dir", "x", "-o", "xml"}, code: exitUsage},
		{args: []string{"--secret-dir", "x", "vol-1"}, code: exitUsage},
		{args: []string{"--secret-dir", "x", "--endpoint", s.URL}, code: exitUsage},
	} {
		if code, stdout, stderr := checkBucket(t.Context(), c.args...); code != c.code || !strings.HasPrefix(stdout, c.stdout) || (code == exitUsage) != (stderr != "") {
			t.Errorf("%v: exit code %d: %s%s", c.args, code, stdout, stderr)
		}
	}
}

func TestCheckBucketAsData(t *testing.T) {
	s := newFakeS3(t, "ExpiredToken")
	for _, output := range []string{asJSON, asYAML} {
		code, stdout, stderr := checkBucket(t.Context(), "--secret-dir", secretDir(t, s.URL, nil), "-o", output)
		raw, err := yaml.YAMLToJSON([]byte(stdout)) // JSON is YAML
		var report struct {
			Verdict    string
			Conditions []map[string]string
		}
		if code != exitAbnormal || stderr != "" || err != nil || json.Unmarshal(raw, &report) != nil || report.Verdict != "abnormal" || len(report.Conditions) != 1 {
			t.Fatalf("%s: exit code %d: %s%s", output, code, stdout, stderr)
		}
		for key, want := range map[string]string{"status": "Inaccessible", "reason": "CredentialsExpired", "tier": "retriable", "error_type": "permission", "message": "403, ExpiredToken"} {
			if got := report.Conditions[0][key]; got != want {
				t.Errorf("%s: %s is %q", output, key, got)
			}
		}
	}
}

// TestCheckBucketAsksAgain has answers that count only if they are given again. Time passes as
// fast as everything waits for it.
func TestCheckBucketAsksAgain(t *testing.T) {
	for name, c := range map[string]struct {
		answers []string
		flags   []string
		code    int
		says    string
		waited  time.Duration
	}{
		"gone":     {answers: []string{"NoSuchBucket"}, code: exitAbnormal, says: "BucketGone", waited: time.Minute},
		"not gone": {answers: []string{"NoSuchBucket", "list"}, says: "healthy", waited: time.Minute},
		"denied": {
			answers: []string{"AccessDenied"},
			code:    exitAbnormal,
			says:    "BucketAccessDenied",
			waited:  30 * time.Second,
		},
		"denied, then gone": {
			answers: []string{"AccessDenied", "NoSuchBucket"},
			code:    exitAbnormal,
			says:    "BucketGone",
			waited:  90 * time.Second,
		},
		"write-only": {answers: []string{"AccessDenied"}, flags: []string{"--write-only"}, says: "healthy"},
	} {
		s := newFakeS3(t, c.answers...)
		args := append([]string{"--secret-dir", secretDir(t, s.URL, nil)}, c.flags...)
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			code, stdout, _ := checkBucket(t.Context(), args...)
			if waited := time.Since(began).Round(time.Second); code != c.code || !strings.Contains(stdout, c.says) || waited != c.waited || strings.Count(stdout, "\n") != 1 {
				t.Errorf("%s: exit code %d after %s: %s", name, code, waited, stdout)
			}
		})
	}
}

// TestWatchBucket has a bucket whose credentials are refused until the Secret has new ones.
func TestWatchBucket(t *testing.T) {
	good := newFakeS3(t, "list")
	refuses := newFakeS3(t, "list", "list", "SignatureDoesNotMatch")
	dir := secretDir(t, refuses.URL, nil)
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		var stdout string
		var code int
		done := make(chan struct{})
		go func() {
			defer close(done)
			code, stdout, _ = checkBucket(ctx, "--secret-dir", dir, "--watch")
		}()
		time.Sleep(4*time.Minute + time.Second) // of the bubble's time
		if err := os.WriteFile(filepath.Join(dir, "COSI_S3_ENDPOINT"), []byte(good.URL), 0o600); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Minute)
		interrupt()
		<-done
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if code != 0 || len(lines) != 3 || !strings.Contains(lines[0], "  healthy: ") || !strings.Contains(lines[1], "  abnormal: ") || !strings.Contains(lines[2], "  healthy: ") {
			t.Errorf("exit code %d: %s", code, stdout)
		}
	})
	if good.asked.Load() == 0 {
		t.Error("the Secret was not read again")
	}
}

// TestWatchBucketAsYAML: each report is a document of its own.
func TestWatchBucketAsYAML(t *testing.T) {
	s := newFakeS3(t, "list", "SignatureDoesNotMatch")
	dir := secretDir(t, s.URL, nil)
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
		defer stop()
		_, stdout, _ := checkBucket(ctx, "--secret-dir", dir, "--watch", "-o", "yaml")
		documents := strings.Split(strings.TrimPrefix(stdout, "---\n"), "---\n")
		if len(documents) != 2 {
			t.Fatal(stdout)
		}
		for _, document := range documents {
			if err := yaml.UnmarshalStrict([]byte(document), new(map[string]any)); err != nil {
				t.Errorf("%v: %s", err, document)
			}
		}
	})
}

func TestCheckBucketIsInterrupted(t *testing.T) {
	s := newFakeS3(t, "NoSuchBucket")
	dir := secretDir(t, s.URL, nil)
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		if code, stdout, stderr := checkBucket(ctx, "--secret-dir", dir); code != exitNoAnswer || stdout != "" || !strings.Contains(stderr, "interrupted") {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
	})
}

// spellings are those in which servers, libraries and proxies quote a secret.
func spellings(secret string) []string {
	quoted, _ := json.Marshal(secret)
	return []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret), string(quoted[1 : len(quoted)-1]), strings.ToLower(secret),
		base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret)),
	}
}

// TestCredentialsAreQuotedNowhere has servers that quote all that they were shown, in each
// place of an answer, and Secrets with credentials in the wrong keys.
func TestCredentialsAreQuotedNowhere(t *testing.T) {
	var text atomic.Pointer[string]
	var status atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		quoted := strings.ReplaceAll(*text.Load(), "SIGNED", r.Header.Get("Authorization")+" "+r.Header.Get("X-Amz-Security-Token"))
		for _, name := range []string{"Location", "X-Amz-Bucket-Region", "Server", "X-Amz-Request-Id", "Www-Authenticate"} {
			w.Header().Set(name, quoted)
		}
		w.WriteHeader(int(status.Load()))
		_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%[1]s</Message><Region>%[1]s</Region><Endpoint>%[1]s</Endpoint></Error>", quoted)
	}))
	defer s.Close()
	hangsUp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_, _ = fmt.Fprintf(conn, "%s\r\n\r\n", *text.Load())
			_ = conn.Close()
		}
	}))
	defer hangsUp.Close()

	aws := func(endpoint string) map[string]string {
		return map[string]string{"COSI_PROTOCOL": "", "AWS_ACCESS_KEY_ID": canaryID, "AWS_SECRET_ACCESS_KEY": canaryKey, "AWS_SESSION_TOKEN": canaryToken, "AWS_ENDPOINT_URL": endpoint}
	}
	canaries, quotes := []string{canaryID, canaryKey, canaryToken, "Signature="}, []string{"SIGNED"}
	for _, secret := range canaries {
		quotes = append(quotes, spellings(secret)...)
	}
	quoting := []string{secretDir(t, "", aws(s.URL)), secretDir(t, "", aws(hangsUp.URL))}
	for _, quote := range quotes {
		text.Store(&quote)
		for _, code := range []int32{200, 301, 403} {
			status.Store(code)
			for i, dir := range quoting {
				quotesNothing(t, canaries, "--secret-dir", dir, "--bucket=data", "-o", []string{asJSON, asTable}[i])
			}
		}
	}
	info := fmt.Sprintf(`{"spec": {"bucketName": %q, "secretS3": {"endpoint": %q, "region": %[1]q, "accessKeyID": %[1]q, "accessSecretKey": %[1]q}}}`, canaryKey, s.URL)
	for _, dir := range []string{
		secretDir(t, "", aws("http://"+canaryID+":"+canaryID+"@127.0.0.1")), secretDir(t, "", aws("http://127.0.0.1:1/"+canaryID)), secretDir(t, "", aws("https://"+strings.TrimPrefix(s.URL, "http://"))),
		secretDir(t, canaryKey, nil), secretDir(t, "http://"+canaryKey, nil), secretDir(t, s.URL, map[string]string{"COSI_S3_REGION": canaryKey}),
		secretDir(t, s.URL, map[string]string{"COSI_S3_BUCKET_ID": canaryKey}), secretDir(t, s.URL, map[string]string{"COSI_PROTOCOL": canaryKey}),
		secretDir(t, s.URL, map[string]string{"COSI_S3_ACCESS_SECRET_KEY": canaryKey + "\n"}),
		secretDir(t, s.URL, map[string]string{"COSI_PROTOCOL": "", "BucketInfo": info}), secretDir(t, s.URL, map[string]string{"COSI_PROTOCOL": "", "BucketInfo": canaryKey}),
	} {
		for _, output := range []string{asTable, asJSON, asYAML} {
			quotesNothing(t, canaries, "--secret-dir", dir, "-o", output)
		}
	}
}

// TestKeysAreMixedUp has a credential, of letters and digits only, in each key that has a name.
func TestKeysAreMixedUp(t *testing.T) {
	const secret = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY01"
	s := newFakeS3(t, "list")
	for _, files := range []map[string]string{
		{"COSI_S3_BUCKET_ID": secret, "COSI_S3_ACCESS_SECRET_KEY": "data"},
		{"COSI_S3_REGION": secret, "COSI_S3_ACCESS_SECRET_KEY": "us-east-1"},
		{"COSI_S3_ENDPOINT": "http://" + secret + ".invalid", "COSI_S3_ACCESS_SECRET_KEY": s.URL},
		{"COSI_PROTOCOL": "", "AWS_ACCESS_KEY_ID": "id", "AWS_REGION": secret, "AWS_SECRET_ACCESS_KEY": "us-east-1"},
	} {
		for _, output := range []string{asTable, asJSON} {
			quotesNothing(t, []string{secret}, "--secret-dir", secretDir(t, s.URL, files), "-o", output)
		}
	}
}

// TestAWordIsACredential has one that could be the name of a bucket, or of a region.
func TestAWordIsACredential(t *testing.T) {
	const word = "abcdefgh"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Amz-Bucket-Region", word)
		w.WriteHeader(http.StatusForbidden)
	}))
	defer s.Close()
	for _, further := range []map[string]string{{}, {"COSI_S3_BUCKET_ID": word}, {"COSI_S3_BUCKET_ID": word, "COSI_S3_ENDPOINT": "http://127.0.0.1:1/" + word}} {
		further["COSI_S3_ACCESS_SECRET_KEY"] = word
		for _, output := range []string{asTable, asJSON} {
			quotesNothing(t, []string{word}, "--secret-dir", secretDir(t, s.URL, further), "-o", output)
		}
	}
}

// quotesNothing fails the test where a check prints one of the secrets, or a half of one.
func quotesNothing(t *testing.T, secrets []string, args ...string) {
	t.Helper()
	_, stdout, stderr := checkBucket(t.Context(), args...)
	if stdout == "" {
		t.Fatal(stderr)
	}
	for _, secret := range secrets {
		for _, s := range spellings(secret) {
			if strings.Contains(stdout+stderr, s[:len(s)/2]) {
				t.Fatalf("%v: has %q: %s%s", args, s, stdout, stderr)
			}
		}
	}
}
