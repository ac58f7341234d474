package bucket

import (
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The reasons: docs/conditions.md has their meaning.
const (
	CredentialsRefused  healer.Reason = "CredentialsRefused"
	CredentialsExpired  healer.Reason = "CredentialsExpired"
	BucketAccessDenied  healer.Reason = "BucketAccessDenied"
	BucketGone          healer.Reason = "BucketGone"
	ClockSkewed         healer.Reason = "ClockSkewed"
	BucketMisconfigured healer.Reason = "BucketMisconfigured"
	Throttled           healer.Reason = "Throttled"
	CertificateRefused  healer.Reason = "CertificateRefused"
)

// Condition is one thing that is wrong.
type Condition struct {
	Status  healer.Status `json:"status"`
	Reason  healer.Reason `json:"reason"`
	Tier    api.Tier      `json:"tier"`
	Type    api.Type      `json:"error_type"`
	Message string        `json:"message"` // the evidence
	Advice  string        `json:"advice"`  // what a person should do
}

// What is no error of S3's.
const (
	listed       = "a list"
	noName       = "name lookup failed"
	notConnected = "no connection"
	noAnswer     = "no answer in time"
	untrusted    = "certificate refused"
	neverDialled = "a link-local or metadata address"
	clockOff     = "a Date more than 5 minutes off"
	expiring     = "less than 15 minutes before the credentials expire, or later"
)

// What a person should do.
const (
	newKeys   = "issue new credentials, put them into the Secret, and restart the pods that read it at their start only"
	setClock  = "set the clock (NTP) of this node, or the server's"
	setRegion = "correct region and endpoint in the Secret"
	seeServer = "see whether the server runs, its log, and the name servers, proxies and firewalls in between"
)

// Row says which condition an answer amounts to.
type Row struct {
	// Codes are error codes of S3, or own words; Statuses are HTTP's, whatever the code.
	Codes    []string
	Statuses []int
	// OtherRegion is true for a row of answers which say that another region is right.
	OtherRegion bool
	// Confirm is the time after which the server has to say it once more before it counts:
	// policies and buckets are known to all nodes of a server only after a while.
	Confirm time.Duration
	// Condition has no reason in the row that says that all is well.
	Condition Condition
}

// Rows returns the table. The first row that fits an answer counts; the last two are looked
// for beside it.
func Rows() []Row {
	return []Row{
		{Codes: []string{neverDialled}, Condition: Condition{healer.Inaccessible, BucketMisconfigured, api.Terminal, api.TypeValidation, "", "correct the endpoint, or what its name server answers"}},
		{Codes: []string{noAnswer}, Condition: Condition{healer.Inaccessible, healer.ServerUnreachable, api.Transient, api.TypeTimeout, "", seeServer}},
		{Codes: []string{notConnected, noName}, Condition: Condition{healer.Inaccessible, healer.ServerUnreachable, api.Transient, api.TypeExecution, "", seeServer}},
		{Codes: []string{untrusted}, Condition: Condition{healer.Inaccessible, CertificateRefused, api.Retriable, api.TypeValidation, "", "renew the server's certificate, or correct COSI_CERTIFICATE_AUTHORITY"}},
		{Codes: []string{"InvalidAccessKeyId"}, Condition: Condition{healer.Inaccessible, CredentialsRefused, api.Retriable, api.TypePermission, "", newKeys}},
		{Codes: []string{"ExpiredToken"}, Condition: Condition{healer.Inaccessible, CredentialsExpired, api.Retriable, api.TypePermission, "", newKeys}},
		{Codes: []string{"RequestTimeTooSkewed"}, Condition: Condition{healer.Inaccessible, ClockSkewed, api.Retriable, api.TypeExecution, "", setClock}},
		{Codes: []string{"AccessDenied"}, Confirm: 30 * time.Second, Condition: Condition{healer.Inaccessible, BucketAccessDenied, api.Retriable, api.TypePermission, "", "allow s3:ListBucket, or name the prefix that is allowed, or say that access is write-only"}},
		{Codes: []string{"NoSuchBucket"}, Confirm: time.Minute, Condition: Condition{healer.DataLoss, BucketGone, api.Terminal, api.TypeExecution, "", "find out who deleted it; make none of the same name while the old one can still be restored"}},
		{Codes: []string{"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"}, Statuses: []int{301, 302, 307, 308}, Condition: Condition{healer.Inaccessible, BucketMisconfigured, api.Terminal, api.TypeValidation, "", setRegion}},
		{Statuses: []int{400, 403}, OtherRegion: true, Condition: Condition{healer.Inaccessible, BucketMisconfigured, api.Terminal, api.TypeValidation, "", setRegion}},
		{Codes: []string{"SignatureDoesNotMatch"}, Condition: Condition{healer.Inaccessible, CredentialsRefused, api.Retriable, api.TypePermission, "", newKeys}},
		{Codes: []string{"SlowDown"}, Statuses: []int{429}, Condition: Condition{healer.Degraded, Throttled, api.Transient, api.TypeExecution, "", "spread or reduce the requests to this server"}},
		{Statuses: []int{500, 502, 503, 504}, Condition: Condition{healer.Inaccessible, healer.ServerUnreachable, api.Transient, api.TypeExecution, "", seeServer}},
		{Codes: []string{listed}},
		{Codes: []string{clockOff}, Condition: Condition{healer.Degraded, ClockSkewed, api.Retriable, api.TypeExecution, "", setClock}},
		{Codes: []string{expiring}, Condition: Condition{healer.Degraded, CredentialsExpired, api.Retriable, api.TypePermission, "", newKeys}},
	}
}

// rowOf returns the row of what b's server answered.
func (b Bucket) rowOf(a answer) (row Row, known bool) {
	if row, known = rowOf(a); row.Condition.Reason == BucketAccessDenied && b.WriteOnly {
		row = Row{} // the signature is good, or the server would have said so first
	}
	return row, known
}

func rowOf(a answer) (_ Row, known bool) {
	for _, r := range Rows() {
		if (slices.Contains(r.Codes, a.Code) || slices.Contains(r.Statuses, a.Status)) && (!r.OtherRegion || a.Region != "") {
			return r, true
		}
	}
	return Row{}, false
}

// COSICode says whether COSI calls a driver again that answered with a code of gRPC.
type COSICode struct {
	Code string
	Call string // empty: any
	// Retried is what COSI's specification says (v1alpha2, "Error Scheme"). RetriedStrictly is
	// what a proposal says that COSI has not taken.
	Retried, RetriedStrictly bool
}

// COSICodes returns the table of them. The first row that fits counts.
func COSICodes() []COSICode {
	return []COSICode{
		{Code: "INVALID_ARGUMENT"},
		{Code: "ALREADY_EXISTS"},
		{Code: "UNIMPLEMENTED"},
		{Code: "OUT_OF_RANGE", Call: "DriverGrantBucketAccess"},
		{Code: "INTERNAL", Retried: true, RetriedStrictly: true},
		{Code: "any other", Retried: true},
	}
}
