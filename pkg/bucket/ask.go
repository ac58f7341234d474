package bucket

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const (
	// askTimeout bounds a question: name lookup, connection, TLS and answer together.
	askTimeout = 5 * time.Second
	// maxHeader and maxBody are read of an answer: 64 KiB together.
	maxHeader = 16 << 10
	maxBody   = 48 << 10
)

// answer is what became of a question. Of what the server wrote it has what is known here
// only: a server may quote the credentials that it was shown.
type answer struct {
	Time   time.Time
	Status int    // HTTP's; 0: there was no answer
	Code   string // of S3, if the table has it; without an answer the table's word for that
	Detail string // why there was no answer
	Region string // the right one, if the server says that it is another one
	// Ahead is this clock minus the server's.
	Ahead time.Duration
}

// ask asks b's server for the name of at most one object:
//
//	GET /data?list-type=2&max-keys=1&prefix=logs%2F
//	Authorization: AWS4-HMAC-SHA256 Credential=AKIA.../us-east-1/s3/aws4_request, ...
//
// HEAD would not do: a wrong key, a deleted key, a skewed clock and a denial are all a bare
// 403 there. An error means that b is unusable.
func ask(ctx context.Context, b Bucket) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := b.request(ctx)
	if err != nil {
		return answer{}, err
	}
	transport := &http.Transport{ // without a proxy, which would dial for us what is never dialled
		// The transport dials in a context of its own, which never ends.
		DialContext:            (&net.Dialer{Control: mayDial, Timeout: askTimeout}).DialContext,
		TLSHandshakeTimeout:    askTimeout,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		MaxResponseHeaderBytes: maxHeader,
		DisableKeepAlives:      true,
		DisableCompression:     true, // or 64 KiB become 64 MiB
	}
	if b.CA != "" {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		transport.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(b.CA))
	}
	// A RoundTrip follows no redirect: that server has nothing to do with these credentials.
	response, err := transport.RoundTrip(request)
	if err != nil {
		return failure(err), nil
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusSwitchingProtocols { // its body is the connection, of which no context ends a read
		return b.read(response, nil), nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return failure(err), nil // what came so far is no list, and may lack a code
	}
	return b.read(response, body), nil
}

// emptySHA256 is the checksum of no content.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// request returns the signed question, or what is wrong with b. An error quotes no value,
// which may be a credential in the wrong place.
func (b Bucket) request(ctx context.Context) (*http.Request, error) {
	at, err := url.Parse(b.Endpoint)
	signedFor := string(b.AccessKeyID+b.SecretAccessKey+b.SessionToken) + b.Region
	switch {
	case strings.ContainsFunc(signedFor, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, errors.New("region or credentials have a line break or a space in them, and so they have for a pod")
	case err != nil, at.Scheme != "http" && at.Scheme != "https", at.Host == "", at.User != nil, at.RawQuery != "", at.Fragment != "":
		return nil, errors.New("the endpoint is no URL of scheme http or https, host, port and path")
	case !bucketName.MatchString(b.Name):
		return nil, errors.New("the bucket's name is missing, or none that S3 knows")
	case strings.HasSuffix(b.Name, "--x-s3"): // at the other endpoints NoSuchBucket, which would be a loss
		return nil, errors.New("a directory bucket (S3 Express) is not supported")
	case b.AccessKeyID == "", b.SecretAccessKey == "":
		return nil, errors.New("there is no access key: access by a ServiceAccount is not supported")
	}
	at.Path = cmp.Or(at.Path, "/")
	// No certificate for *.HOST is good for a name with a dot: AWS's tools ask by path then, too.
	if b.VirtualHost && (at.Scheme == "http" || !strings.Contains(b.Name, ".")) {
		at.Host = b.Name + "." + at.Host
	} else {
		at = at.JoinPath(b.Name)
	}
	at.RawQuery = url.Values{"list-type": {"2"}, "max-keys": {"1"}, "prefix": {b.Prefix}}.Encode()
	request := (&http.Request{Method: http.MethodGet, URL: at, Host: at.Host, Header: http.Header{"X-Amz-Content-Sha256": {emptySHA256}}}).WithContext(ctx)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }) // as S3 has it
	credentials := aws.Credentials{AccessKeyID: string(b.AccessKeyID), SecretAccessKey: string(b.SecretAccessKey), SessionToken: string(b.SessionToken)}
	return request, signer.SignHTTP(ctx, credentials, request, emptySHA256, "s3", b.region(), time.Now())
}

// bucketName is wider than the rules of S3, which not all servers keep, and makes no other
// path of the URL.
var bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$`)

// regionName is what AWS and most others call regions: us-east-1, us-gov-west-1, us-west-004, nyc3, fr-par. What a
// server writes, or a Secret has in the wrong place, is printed or looked up only if it looks like this: a generated or
// encoded credential does not.
var regionName = regexp.MustCompile(`^[a-z]{2,16}[0-9]{0,3}(-[a-z]{1,16}){0,3}(-[0-9]{1,3})?$`)

// meantByGarage has the codes of other servers by the words with which Garage's messages begin: it
// answers AccessDenied to a deleted key and a wrong secret, too, and that would prove a good signature.
var meantByGarage = map[string]string{
	"Forbidden: No such key":       "InvalidAccessKeyId",
	"Forbidden: Invalid signature": "SignatureDoesNotMatch",
}

// read returns what is known here of a response.
func (b Bucket) read(response *http.Response, body []byte) answer {
	a := answer{Time: time.Now(), Status: response.StatusCode}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		a.Ahead = a.Time.Sub(date)
	}
	var document struct {
		XMLName               xml.Name
		Code, Message, Region string
	}
	// A text that is no XML has no name. The list of a server that ignores max-keys is cut, and has.
	_ = xml.Unmarshal(body, &document)
	for words, code := range meantByGarage {
		if document.Code == "AccessDenied" && strings.HasPrefix(document.Message, words) {
			document.Code = code
		}
	}
	_, known := rowOf(answer{Code: document.Code})
	switch {
	case document.XMLName.Local == "ListBucketResult" && a.Status == http.StatusOK:
		a.Code = listed
	case document.XMLName.Local == "Error" && known && !strings.Contains(document.Code, " "): // as the table's own words have
		a.Code = document.Code
	}
	region := cmp.Or(response.Header.Get("X-Amz-Bucket-Region"), document.Region)
	credential := func(s Secret) bool { return s != "" && strings.Contains(region, strings.ToLower(string(s))) }
	if region != b.region() && regionName.MatchString(region) && !slices.ContainsFunc([]Secret{b.SecretAccessKey, b.SessionToken, b.AccessKeyID}, credential) {
		a.Region = region
	}
	return a
}

// never are the networks that are not dialled. What is there gives the node's credentials to
// whoever connects from the node, or leads on to such an address.
var never = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),     // link-local, with the metadata of most clouds
	netip.MustParsePrefix("fe80::/10"),          // link-local
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS: ::254, and ::23 of EKS
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google
	netip.MustParsePrefix("fd00:42::42/128"),    // Scaleway
	// 169.254.0.0/16 by NAT64 with a local prefix of 48, 56 or 64 bits (RFC 8215, RFC 6052).
	netip.MustParsePrefix("64:ff9b:1:a9fe::/64"),
	netip.MustParsePrefix("64:ff9b:1:a9:fe::/80"),
	netip.MustParsePrefix("64:ff9b:1:0:a9:fe00::/88"),
	netip.MustParsePrefix("2002::/16"), // 6to4, any IPv4 address (RFC 7526: not to be used)
	netip.MustParsePrefix("2001::/32"), // Teredo, as well
}

var errNeverDialled = errors.New("a link-local or metadata address")

// mayDial is called with each address right before it is connected to: a name that is looked
// up twice may have another address the second time. An IPv6 address may be an IPv4 address
// for a gateway, as its last four bytes: mapped (::ffff:a9fe:a9fe), compatible (::a9fe:a9fe), NAT64
// (64:ff9b::a9fe:a9fe, or another prefix of 96 bits).
func mayDial(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return errNeverDialled
	}
	whole := to.Addr().Unmap().WithZone("")
	bytes := whole.As16()
	for _, a := range []netip.Addr{whole, netip.AddrFrom4([4]byte(bytes[12:]))} {
		if slices.ContainsFunc(never, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return errNeverDialled
		}
	}
	return nil
}

// failure returns the answer that an error is, without the error's own text, which may quote
// what the server sent.
func failure(err error) answer {
	a := answer{Time: time.Now(), Code: notConnected}
	if errors.Is(err, errNeverDialled) {
		a.Code = neverDialled
	} else if certificate, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		a.Code, a.Detail = untrusted, fmt.Sprintf("%T", certificate.Err) // x509.HostnameError
	} else if _, is := errors.AsType[*net.DNSError](err); is {
		a.Code = noName
	} else if errors.Is(err, context.DeadlineExceeded) {
		a.Code = noAnswer
	} else if call, is := errors.AsType[*os.SyscallError](err); is {
		a.Detail = call.Err.Error()
	} else if record, is := errors.AsType[tls.RecordHeaderError](err); is && string(record.RecordHeader[:]) == "HTTP/" {
		a.Detail = "the server speaks HTTP, not HTTPS"
	}
	return a
}

// evidence is the answer in a few words: "403, AccessDenied".
func (a answer) evidence() string {
	if a.Status == 0 {
		return strings.TrimSuffix(a.Code+": "+a.Detail, ": ")
	}
	text := strconv.Itoa(a.Status) + ", " + cmp.Or(a.Code, "and no code that is known here")
	if a.Region != "" && a.Code != listed {
		text += ", the right region is " + a.Region
	}
	if a.Ahead.Abs() > maxSkew {
		text += fmt.Sprintf(", this clock minus the server's is %s", a.Ahead.Round(time.Minute))
	}
	return text
}
