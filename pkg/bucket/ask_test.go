package bucket

import (
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// serve answers as handler does, and returns an access to a bucket there.
func serve(t *testing.T, handler http.HandlerFunc) Bucket {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return Bucket{Endpoint: s.URL, Name: "data", AccessKeyID: "AKIACANARY", SecretAccessKey: "c4n4ry/S3cr3t+Key", SessionToken: "c4n4ryT0ken=="}
}

func respond(status int, headers map[string]string, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func s3Error(code, more string) string {
	return `<?xml version="1.0" encoding="UTF-8"?>` + "\n<Error><Code>" + code + "</Code><Message>text</Message>" + more + "<RequestId>1</RequestId></Error>"
}

// garageError is what Garage (src/api/common/signature/payload.rs) forbids with.
func garageError(why string) string {
	return "<Error><Code>AccessDenied</Code><Message>Forbidden: " + why + "</Message><Resource>/data</Resource><Region>us-east-1</Region></Error>"
}

const list = `<?xml version="1.0" encoding="UTF-8"?>` + "\n" + `<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>data</Name><Prefix></Prefix><KeyCount>0</KeyCount><MaxKeys>1</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>`

var serversAnswers = map[string]struct {
	status  int
	headers map[string]string
	body    string
	// want is the reason; empty: the verdict.
	want, verdict, says string
}{
	"a list": {status: 200, body: list, verdict: Healthy, says: "200, a list"},
	"a list from another region": {
		status:  200,
		headers: map[string]string{"X-Amz-Bucket-Region": "eu-west-1"},
		body:    list,
		verdict: Healthy,
	},
	"a long list": {
		status:  200,
		body:    strings.Replace(list, "<KeyCount>", "<Contents>"+strings.Repeat("<Key>k</Key>", 10000)+"</Contents><KeyCount>", 1),
		verdict: Healthy,
	},
	"no key": {
		status:  403,
		body:    s3Error("InvalidAccessKeyId", "<AWSAccessKeyId>AKIACANARY</AWSAccessKeyId>"),
		want:    string(CredentialsRefused),
		verdict: Abnormal,
		says:    "403, InvalidAccessKeyId",
	},
	"wrong key": {
		status:  403,
		body:    s3Error("SignatureDoesNotMatch", "<StringToSign>c4n4ryT0ken==</StringToSign>"),
		want:    string(CredentialsRefused),
		verdict: Abnormal,
		says:    "To do: issue new credentials",
	},
	"no key, of Garage": {
		status:  403,
		body:    garageError("No such key: AKIACANARY"),
		want:    string(CredentialsRefused),
		verdict: Abnormal,
		says:    "403, InvalidAccessKeyId",
	},
	"wrong key, of Garage": {
		status:  403,
		body:    garageError("Invalid signature"),
		want:    string(CredentialsRefused),
		verdict: Abnormal,
		says:    "403, SignatureDoesNotMatch",
	},
	"wrong key in the region": {
		status:  403,
		headers: map[string]string{"X-Amz-Bucket-Region": "us-east-1"},
		body:    s3Error("SignatureDoesNotMatch", ""),
		want:    string(CredentialsRefused),
		verdict: Abnormal,
	},
	"wrong region's signature": {
		status:  403,
		headers: map[string]string{"X-Amz-Bucket-Region": "eu-west-1"},
		body:    s3Error("SignatureDoesNotMatch", ""),
		want:    string(BucketMisconfigured),
		verdict: Abnormal,
		says:    "the right region is eu-west-1",
	},
	"expired": {
		status:  400,
		body:    s3Error("ExpiredToken", "<Token-0>c4n4ryT0ken==</Token-0>"),
		want:    string(CredentialsExpired),
		verdict: Abnormal,
	},
	"clock": {status: 403, body: s3Error("RequestTimeTooSkewed", ""), want: string(ClockSkewed), verdict: Abnormal},
	"malformed": {
		status:  400,
		body:    s3Error("AuthorizationHeaderMalformed", "<Region>eu-central-1</Region>"),
		want:    string(BucketMisconfigured),
		verdict: Abnormal,
		says:    "the right region is eu-central-1",
	},
	"moved": {
		status:  301,
		headers: map[string]string{"X-Amz-Bucket-Region": "nyc3", "Location": "http://127.0.0.1:1/"},
		body:    s3Error("PermanentRedirect", ""),
		want:    string(BucketMisconfigured),
		verdict: Abnormal,
		says:    "nyc3",
	},
	"moved, without XML": {
		status:  307,
		headers: map[string]string{"Location": "http://127.0.0.1:1/"},
		want:    string(BucketMisconfigured),
		verdict: Abnormal,
		says:    "307",
	},
	"slow down": {
		status:  503,
		body:    s3Error("SlowDown", ""),
		want:    string(Throttled),
		verdict: Abnormal,
		says:    "503, SlowDown",
	},
	"too many requests": {status: 429, body: "<html>", want: string(Throttled), verdict: Abnormal, says: "429"},
	"no server behind the proxy": {
		status:  503,
		body:    "<html>no server is available</html>",
		want:    string(healer.ServerUnreachable),
		verdict: Abnormal,
		says:    "503",
	},
	"internal error": {
		status:  500,
		body:    s3Error("InternalError", ""),
		want:    string(healer.ServerUnreachable),
		verdict: Abnormal,
		says:    "500",
	},
	"denied by a proxy": {
		status:  403,
		body:    "<html>forbidden</html>",
		verdict: NotJudged,
		says:    "403, and no code that is known here",
	},
	"no such page": {status: 404, body: "<html>", verdict: NotJudged, says: "404"},
	"no such key":  {status: 404, body: s3Error("NoSuchKey", ""), verdict: NotJudged, says: "404"},
	"a web page":   {status: 200, body: "<html><body>Welcome</body></html>", verdict: NotJudged, says: "200"},
	"nothing":      {status: 200, verdict: NotJudged, says: "200"},
	"an error that is a word of ours": {
		status:  403,
		body:    s3Error("a list", ""),
		verdict: NotJudged,
		says:    "403, and no code that is known here",
	},
	"an error that says a list": {status: 403, body: list, verdict: NotJudged, says: "403"},
}

// TestAnswers has the raw answers of AWS and of servers like it, and what each says.
func TestAnswers(t *testing.T) {
	for name, tc := range serversAnswers {
		t.Run(name, func(t *testing.T) {
			report := Check(t.Context(), serve(t, respond(tc.status, tc.headers, tc.body)))
			reason := ""
			if len(report.Conditions) > 0 {
				reason = string(report.Conditions[0].Reason)
			}
			if reason != tc.want || report.Verdict != tc.verdict || !strings.Contains(report.Message, tc.says) || !strings.HasPrefix(report.Message, tc.verdict+": ") {
				t.Errorf("%+v", report)
			}
		})
	}
}

// TestTheQuestionIsSigned looks at what a server gets.
func TestTheQuestionIsSigned(t *testing.T) {
	var got *http.Request
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		respond(200, nil, list)(w, r)
	})
	b.Prefix, b.Region = "a b/ü&max-keys=1000", "eu-west-1"
	if report := Check(t.Context(), b); report.Verdict != Healthy {
		t.Fatal(report)
	}
	query := got.URL.Query()
	if got.Method != http.MethodGet || got.URL.Path != "/data" || query.Get("list-type") != "2" || query.Get("max-keys") != "1" || query.Get("prefix") != b.Prefix {
		t.Errorf("%s %s", got.Method, got.URL)
	}
	if h := got.Header.Get("Authorization"); !strings.HasPrefix(h, "AWS4-HMAC-SHA256 Credential=AKIACANARY/") || !strings.Contains(h, "/eu-west-1/s3/aws4_request") || !strings.Contains(h, "x-amz-security-token") {
		t.Error(h)
	}
	b.VirtualHost, b.Endpoint = true, strings.Replace(b.Endpoint, "127.0.0.1", "localhost", 1)
	if request, err := b.request(t.Context()); err != nil || request.Host != "data."+strings.TrimPrefix(b.Endpoint, "http://") || request.URL.Path != "/" {
		t.Error(request, err)
	}
}

// TestADottedNameIsAskedByPath over TLS, where a certificate for *.s3.example.com is refused for it.
func TestADottedNameIsAskedByPath(t *testing.T) {
	for endpoint, want := range map[string]string{"https://s3.example.com": "https://s3.example.com/my.data", "http://s3.example.com": "http://my.data.s3.example.com/"} {
		request, err := (Bucket{Endpoint: endpoint, Name: "my.data", VirtualHost: true, AccessKeyID: "id", SecretAccessKey: "key"}).request(t.Context())
		if err != nil || !strings.HasPrefix(request.URL.String(), want+"?") {
			t.Errorf("%v, %v", request, err)
		}
	}
}

// TestNoRegionOfAWS is named where AWS's endpoint would be made of it, and not looked up.
func TestNoRegionOfAWS(t *testing.T) {
	for _, region := range []string{"eu-west-1\n", "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY01", "RegionOne"} {
		files := map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": region}
		dir := t.TempDir()
		mount(t, dir, "..1", files)
		if _, err := ReadDir(dir); err == nil || !strings.Contains(err.Error(), "the region is none of AWS's") || strings.Contains(err.Error(), region) {
			t.Errorf("%q: %v", region, err)
		}
		files["AWS_ENDPOINT_URL"] = "http://s3"
		mount(t, dir, "..2", files)
		if _, err := ReadDir(dir); err != nil {
			t.Errorf("%q of another server: %v", region, err)
		}
	}
}

// TestRegions has names of many providers, and what people call theirs.
func TestRegions(t *testing.T) {
	b := serve(t, respond(200, nil, list))
	for _, b.Region = range []string{"", "us-east-1", "us-isob-east-1", "us-gov-west-1", "eusc-de-east-1", "us-west-004", "us-central1", "ru-central1", "oss-cn-hangzhou", "fr-par", "nyc3", "ch-gva-2", "auto", "RegionOne", "my_zone", "US-EAST-04A", "RNO2A", "c3j1", "lab-k8s", "eu.west", "1"} {
		if report := Check(t.Context(), b); report.Verdict != Healthy {
			t.Errorf("%q: %v", b.Region, report)
		}
	}
}

// TestACredentialIsNoRegion has what a server writes of one, in other letters or encoded.
func TestACredentialIsNoRegion(t *testing.T) {
	for secret, written := range map[string]string{"Abcdefgh": "abcdefgh", "minio": "bWluaW8", "minioadmin1x": "MINIOADMIN"} {
		b := serve(t, respond(403, map[string]string{"X-Amz-Bucket-Region": written}, ""))
		b.AccessKeyID = Secret(secret)
		if report := Check(t.Context(), b); strings.Contains(report.Message, written) {
			t.Errorf("%q: %v", secret, report.Message)
		}
	}
}

func TestUnusable(t *testing.T) {
	good := serve(t, respond(200, nil, list))
	for name, change := range map[string]func(*Bucket){
		"no scheme":         func(b *Bucket) { b.Endpoint = "s3.example.com" },
		"another scheme":    func(b *Bucket) { b.Endpoint = "file:///c4n4ry" },
		"a password":        func(b *Bucket) { b.Endpoint = "http://u:c4n4ry@127.0.0.1" },
		"a query":           func(b *Bucket) { b.Endpoint += "/?c4n4ry" },
		"no endpoint":       func(b *Bucket) { b.Endpoint = "" },
		"a broken endpoint": func(b *Bucket) { b.Endpoint = "http://c4n4ry%zz" },
		"no name":           func(b *Bucket) { b.Name = "" },
		"a directory":       func(b *Bucket) { b.Name = "data--use1-az4--x-s3" },
		"a path":            func(b *Bucket) { b.Name = "../c4n4ry" },
		"no key":            func(b *Bucket) { b.AccessKeyID = "" },
		"no secret":         func(b *Bucket) { b.SecretAccessKey = "" },
		"a line break":      func(b *Bucket) { b.SecretAccessKey += "\n" },
		"an odd region":     func(b *Bucket) { b.Region = "c4n4ry\r\nX-Y: z" },
	} {
		b := good
		change(&b)
		if report := Check(t.Context(), b); report.Verdict != NotJudged || strings.Contains(report.Message, "c4n4ry") || len(report.Conditions) > 0 {
			t.Errorf("%s: %v", name, report)
		}
	}
}

// TestNoRedirectIsFollowed has a server that would get the signed headers.
func TestNoRedirectIsFollowed(t *testing.T) {
	var asked atomic.Int32
	other := serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		b := serve(t, respond(status, map[string]string{"Location": other.Endpoint + "/data"}, ""))
		if report := Check(t.Context(), b); report.Verdict == Healthy || strings.Contains(report.Message, strings.TrimPrefix(other.Endpoint, "http://")) {
			t.Error(report)
		}
	}
	if asked.Load() > 0 {
		t.Error("a redirect was followed")
	}
}

// TestNoMoreThanItMayRead has servers that send without end, or what grows.
func TestNoMoreThanItMayRead(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"a body": func(w http.ResponseWriter, _ *http.Request) {
			for sent := 0; ; sent++ {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
				if sent > 64<<10 {
					t.Error("64 MiB were taken")
					return
				}
			}
		},
		"a header": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", 32<<10))
			respond(200, nil, list)(w, r)
		},
		"another protocol, and silence": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
			_ = conn.SetReadDeadline(time.Now().Add(4 * askTimeout))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("it is waited for what the server says then")
			}
		},
		"a bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write([]byte(list))
			_ = z.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			if report := Check(t.Context(), serve(t, handler)); report.Verdict == Healthy {
				t.Error(report)
			}
		})
	}
}

// TestNoAnswer has what becomes of a question that no server answers.
func TestNoAnswer(t *testing.T) {
	silent := make(chan struct{})
	hangs := serve(t, func(http.ResponseWriter, *http.Request) { <-silent })
	defer close(silent)
	gone := httptest.NewServer(nil)
	gone.Close()
	noHTTP := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = conn.Write([]byte("AKIACANARY c4n4ry/S3cr3t+Key c4n4ryT0ken==\r\n\r\n"))
			_ = conn.Close()
		}
	})
	plain := serve(t, respond(200, nil, list))
	for _, tc := range []struct {
		endpoint string
		want     healer.Reason
		says     string
	}{
		{hangs.Endpoint, healer.ServerUnreachable, "no answer in time"},
		{gone.URL, healer.ServerUnreachable, "connection refused"},
		{noHTTP.Endpoint, healer.ServerUnreachable, "no connection"},
		{"https" + strings.TrimPrefix(plain.Endpoint, "http"), healer.ServerUnreachable, "HTTP, not HTTPS"},
		{"http://no-such-host.invalid", healer.ServerUnreachable, "name lookup failed"},
		{"http://169.254.169.254", BucketMisconfigured, "a link-local or metadata address"},
		{"https://[fe80::1%25lo]:443/s3", BucketMisconfigured, "a link-local or metadata address"},
		{"http://[::ffff:169.254.169.254]", BucketMisconfigured, "a link-local or metadata address"},
	} {
		b := hangs
		b.Endpoint = tc.endpoint
		report := Check(t.Context(), b)
		if len(report.Conditions) != 1 || report.Conditions[0].Reason != tc.want || !strings.Contains(report.Message, tc.says) || strings.Contains(report.Message, "c4n4ry") || strings.Contains(report.Message, "CANARY") {
			t.Errorf("%s: %v", tc.endpoint, report)
		}
	}
}

// TestNoConnectionIsLeft has a server that takes connections, and never answers a TLS handshake.
func TestNoConnectionIsLeft(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ended := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			_, err = io.Copy(io.Discard, conn)
		}
		ended <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	a, err := ask(ctx, Bucket{Endpoint: "https://" + l.Addr().String(), Name: "data", AccessKeyID: "id", SecretAccessKey: "key"})
	if err != nil || a.Code != noAnswer {
		t.Errorf("%+v, %v", a, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the connection stays after the question: %v", err)
	}
}

func TestCertificates(t *testing.T) {
	s := httptest.NewTLSServer(respond(200, nil, list))
	defer s.Close()
	own := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	for _, tc := range []struct {
		name, endpoint, ca string
		want               healer.Reason
		says               string
	}{
		{name: "of its authority", endpoint: s.URL, ca: own, says: Healthy},
		{name: "of another one", endpoint: s.URL, want: CertificateRefused, says: "x509.UnknownAuthorityError"},
		{
			name:     "with no authority",
			endpoint: s.URL,
			ca:       "c4n4ry",
			want:     CertificateRefused,
			says:     "x509.UnknownAuthorityError",
		},
		{
			name:     "for another host",
			endpoint: strings.Replace(s.URL, "127.0.0.1", "localhost", 1),
			ca:       own,
			want:     CertificateRefused,
			says:     "x509.HostnameError",
		},
	} {
		b := Bucket{Endpoint: tc.endpoint, Name: "data", AccessKeyID: "id", SecretAccessKey: "key", CA: tc.ca}
		report := Check(t.Context(), b)
		if got := append(report.Conditions, Condition{})[0]; got.Reason != tc.want || !strings.Contains(report.Message, tc.says) {
			t.Errorf("%s: %v", tc.name, report)
		}
	}
}

func TestNeverDialled(t *testing.T) {
	for _, refused := range []string{
		"169.254.169.254", "169.254.0.1", "169.254.170.2", "100.100.100.200", "168.63.129.16",
		"fe80::1", "fe80::1%eth0", "febf::1", "fe80::a9fe:a9fe", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42",
		"::ffff:169.254.169.254", "::ffff:100.100.100.200", "::169.254.169.254", "::ffff:0:169.254.169.254",
		"64:ff9b::169.254.169.254", "64:ff9b::168.63.129.16", "64:ff9b:1::169.254.169.254", "2001:db8:64::169.254.169.254",
		"64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9:fe:a9fe::", "64:ff9b:1:0:a9:fea9:fe00:0",
		"2002:a9fe:a9fe::1", "2001:0:1:2:3:4:5601:5601",
	} {
		if err := mayDial("tcp", netip.AddrPortFrom(netip.MustParseAddr(refused), 80).String(), nil); err == nil {
			t.Errorf("%s is dialled", refused)
		}
	}
	for _, allowed := range []string{"127.0.0.1", "::1", "10.0.0.1", "192.168.0.1", "52.216.1.1", "fd00::1", "2600:1fa0:8000::1", "64:ff9b::10.0.0.1", "64:ff9b:1::52.216.1.1", "2001:db8::1"} {
		if err := mayDial("tcp", netip.AddrPortFrom(netip.MustParseAddr(allowed), 80).String(), nil); err != nil {
			t.Errorf("%s is not dialled", allowed)
		}
	}
	if mayDial("unix", "/run/x", nil) == nil {
		t.Error("no address is dialled")
	}
}

// TestNamesThatLeadToMetadata has a name server that answers what is never dialled.
func TestNamesThatLeadToMetadata(t *testing.T) {
	answers := map[string]string{
		"a.example.": "169.254.169.254", "mapped.example.": "::ffff:169.254.169.254", "nat64.example.": "64:ff9b::169.254.169.254", "aws.example.": "fd00:ec2::254",
	}
	names, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		serveNames(names, answers)
	}()
	system := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", names.LocalAddr().String())
	}}
	defer func() {
		net.DefaultResolver = system
		_ = names.Close()
		<-served
	}()
	for name, address := range answers {
		b := Bucket{Endpoint: "http://" + strings.TrimSuffix(name, "."), Name: "data", AccessKeyID: "id", SecretAccessKey: "key"}
		report := Check(t.Context(), b)
		if got := append(report.Conditions, Condition{})[0]; got.Reason != BucketMisconfigured {
			t.Errorf("%s: %+v", address, report)
		}
	}
}

// serveNames answers with one address for each name, until the connection is closed.
func serveNames(conn net.PacketConn, answers map[string]string) {
	for buffer := make([]byte, 512); ; {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		address := netip.MustParseAddr(answers[q.Name.String()])
		header := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
		m.Response, m.Additionals = true, nil
		switch {
		case q.Type == dnsmessage.TypeA && address.Is4():
			m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: address.As4()}}}
		case q.Type == dnsmessage.TypeAAAA && !address.Is4():
			m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AAAAResource{AAAA: address.As16()}}}
		}
		if packed, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(packed, from)
		}
	}
}

// TestDate compares the clocks.
func TestDate(t *testing.T) {
	for off, want := range map[time.Duration]string{
		4 * time.Minute: "", -4 * time.Minute: "",
		20 * time.Minute:  "this clock minus the server's is -20m0s",
		-20 * time.Minute: "this clock minus the server's is 20m0s",
	} {
		for status, body := range map[int]string{200: list, 403: s3Error("RequestTimeTooSkewed", "")} {
			b := serve(t, respond(status, map[string]string{"Date": time.Now().Add(off).UTC().Format(http.TimeFormat)}, body))
			report := Check(t.Context(), b)
			skewed := want != "" || status == 403
			if (len(report.Conditions) == 1 && report.Conditions[0].Reason == ClockSkewed) != skewed || !strings.Contains(report.Message, want) {
				t.Errorf("%s, %d: %v", off, status, report)
			}
			if skewed && (report.Conditions[0].Status == healer.Degraded) != (status == 200) {
				t.Errorf("%s, %d: %v", off, status, report)
			}
		}
	}
}

// TestNoProxy would have another program dial for us.
func TestNoProxy(t *testing.T) {
	proxy := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a proxy was asked") })
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.Endpoint)
	}
	b := proxy
	b.Endpoint = "http://no-such-host.invalid"
	if report := Check(t.Context(), b); !strings.Contains(report.Message, "name lookup failed") {
		t.Error(fmt.Sprint(report))
	}
}
