package integration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/csi-addons/node-healer/pkg/bucket"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness"
)

// access is the Secret of a BucketAccess on a real server.
func access(s *harness.S3, key string) map[string]string {
	return map[string]string{
		"COSI_PROTOCOL": "S3", "COSI_S3_ENDPOINT": s.URL(), "COSI_S3_REGION": "us-east-1", "COSI_S3_BUCKET_ID": harness.S3Bucket, "COSI_S3_ADDRESSING_STYLE": "path",
		"COSI_S3_ACCESS_KEY_ID": key, "COSI_S3_ACCESS_SECRET_KEY": harness.Canary,
	}
}

// bucketCheck is healerctl check bucket with a mounted Secret.
type bucketCheck struct{ program, dir string }

func newBucketCheck(t *testing.T) *bucketCheck {
	t.Helper()
	return &bucketCheck{harness.BuildHealerctl(t), t.TempDir()}
}

// expect writes the Secret and checks: the exit code, and words of the answer.
func (c *bucketCheck) expect(t *testing.T, secret map[string]string, code int, words ...string) {
	t.Helper()
	for name, text := range secret {
		harness.Must(t, os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600))
	}
	out, err := exec.CommandContext(t.Context(), c.program, "check", "bucket", "--secret-dir", c.dir, "-o", "json").CombinedOutput()
	got := 0
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	var report bucket.Report
	if err := json.Unmarshal(out, &report); err != nil || got != code {
		t.Errorf("exit code %d, want %d, %v: %s", got, code, err, out)
	}
	for _, word := range words {
		if !strings.Contains(report.Message, word) {
			t.Errorf("no %q in %s", word, out)
		}
	}
	quotesNothing(t, harness.Canary, "the answer", string(out))
}

// TestBucketOfARealServer has the answers of a real server, each as a person gets it.
func TestBucketOfARealServer(t *testing.T) {
	s := harness.NewS3(t, "good", "revoked")
	c := newBucketCheck(t)
	c.expect(t, access(s, "good"), 0, "healthy: 200, a list")
	s.Revoke("revoked")
	c.expect(t, access(s, "revoked"), 1, "CredentialsRefused (403, InvalidAccessKeyId)")
	wrong := access(s, "good")
	wrong["COSI_S3_ACCESS_SECRET_KEY"] = "another-0f-" + harness.Canary
	c.expect(t, wrong, 1, "CredentialsRefused (403, SignatureDoesNotMatch)")
	elsewhere := access(s, "good")
	elsewhere["COSI_S3_REGION"] = "eu-west-1"
	c.expect(t, elsewhere, 1, "BucketMisconfigured (", "the right region is us-east-1")

	behind, err := url.Parse(s.URL())
	harness.Must(t, err)
	secure := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(behind))
	defer secure.Close()
	encrypted := access(s, "good")
	encrypted["COSI_S3_ENDPOINT"] = secure.URL
	c.expect(t, encrypted, 1, "CertificateRefused", "x509.UnknownAuthorityError")
	encrypted["COSI_CERTIFICATE_AUTHORITY"] = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	c.expect(t, encrypted, 0, "healthy")

	s.Suspend()
	c.expect(t, access(s, "good"), 1, "ServerUnreachable (no answer in time)")
	s.Resume()
	s.Stop()
	c.expect(t, access(s, "good"), 1, "ServerUnreachable (no connection: connection refused)")

	s.Args = []string{"--max-requests=1"}
	s.Start()
	content, more := io.Pipe()
	defer more.Close()
	uploaded := make(chan error, 1)
	go func() { uploaded <- upload(t.Context(), s, content) }()
	_, err = more.Write(make([]byte, 64<<10)) // a server reads on once it has begun with the request
	harness.Must(t, err)
	harness.Eventually(t, "the server has begun with the one request that it takes", func() bool {
		select {
		case err := <-uploaded:
			t.Fatal("the upload ended: ", err)
		default:
		}
		out, _ := exec.CommandContext(t.Context(), c.program, "check", "bucket", "--secret-dir", c.dir).CombinedOutput()
		return strings.Contains(string(out), "Throttled")
	})
	c.expect(t, access(s, "good"), 1, "Throttled (503, SlowDown)")
}

// upload puts an object of 16 MiB, more than the server reads before it begins.
func upload(ctx context.Context, s *harness.S3, content io.Reader) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, s.URL()+"/"+harness.S3Bucket+"/x", content)
	if err != nil {
		return err
	}
	request.ContentLength = 16 << 20
	const unsigned = "UNSIGNED-PAYLOAD"
	request.Header.Set("X-Amz-Content-Sha256", unsigned)
	if err := v4.NewSigner().SignHTTP(ctx, aws.Credentials{AccessKeyID: "good", SecretAccessKey: harness.Canary}, request, unsigned, "s3", "us-east-1", time.Now()); err != nil {
		return err
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return errors.New(response.Status)
}

// TestBucketsClock has what is asked with another clock than the server's, and what counts a
// while later. Its time begins when it should, and passes as fast as everything waits for it.
func TestBucketsClock(t *testing.T) {
	s := harness.NewS3(t, "good")
	s.AllowNothing("denied")
	now := time.Now()
	check := func(ahead time.Duration, key string, change ...func(*bucket.Bucket)) (report bucket.Report) {
		b := bucket.Bucket{Endpoint: s.URL(), Name: harness.S3Bucket, AccessKeyID: bucket.Secret(key), SecretAccessKey: harness.Canary}
		for _, c := range change {
			c(&b)
		}
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(now.Add(ahead)))
			report = bucket.Check(t.Context(), b)
		})
		quotesNothing(t, harness.Canary, "the report", report.Message)
		return report
	}
	expect := func(report bucket.Report, status healer.Status, reason healer.Reason) {
		t.Helper()
		if got := append(report.Conditions, bucket.Condition{})[0]; got.Status != status || got.Reason != reason {
			t.Errorf("want %s, %s: %+v", status, reason, report)
		}
	}
	expect(check(0, "good"), "", "")
	expect(check(time.Hour, "good"), healer.Inaccessible, bucket.ClockSkewed)
	expect(check(-time.Hour, "good"), healer.Inaccessible, bucket.ClockSkewed)
	expect(check(10*time.Minute, "good"), healer.Degraded, bucket.ClockSkewed)
	expect(check(0, "denied"), healer.Inaccessible, bucket.BucketAccessDenied)
	expect(check(0, "denied", func(b *bucket.Bucket) { b.WriteOnly = true }), "", "")

	away := s.Data() + ".away"
	harness.Must(t, os.Rename(s.Data(), away))
	expect(check(0, "good"), healer.DataLoss, bucket.BucketGone)
	// Who has no good key learns nothing of the bucket.
	expect(check(0, "good", func(b *bucket.Bucket) { b.SecretAccessKey = "x" }), healer.Inaccessible, bucket.CredentialsRefused)
	if _, err := os.Stat(s.Data()); err == nil {
		t.Error("the bucket was made anew")
	}
	harness.Must(t, os.Rename(away, s.Data()))
	expect(check(0, "good"), "", "")
}
