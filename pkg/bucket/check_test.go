package bucket

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// TestWhatIsConfirmed has a denial and a bucket that is gone, which servers say for a while of
// what is there, too. Time passes as fast as everything waits for it.
func TestWhatIsConfirmed(t *testing.T) {
	for name, tc := range map[string]struct {
		answers   []string // codes of S3, or a list
		writeOnly bool
		// want is the reason; empty: none.
		want   healer.Reason
		waited time.Duration
	}{
		"gone":                         {answers: []string{"NoSuchBucket"}, want: BucketGone, waited: time.Minute},
		"gone, and not":                {answers: []string{"NoSuchBucket", "list"}, waited: time.Minute},
		"gone, and what is that":       {answers: []string{"NoSuchBucket", "NoSuchKey"}, waited: time.Minute},
		"gone, and the key is wrong":   {answers: []string{"NoSuchBucket", "SignatureDoesNotMatch"}, want: CredentialsRefused, waited: time.Minute},
		"gone, denied and back":        {answers: []string{"NoSuchBucket", "AccessDenied", "list"}, waited: 90 * time.Second},
		"denied":                       {answers: []string{"AccessDenied"}, want: BucketAccessDenied, waited: 30 * time.Second},
		"denied, and not":              {answers: []string{"AccessDenied", "list"}, waited: 30 * time.Second},
		"to write only":                {answers: []string{"AccessDenied"}, writeOnly: true},
		"to write only, wrong key":     {answers: []string{"SignatureDoesNotMatch"}, writeOnly: true, want: CredentialsRefused},
		"to write only, gone":          {answers: []string{"NoSuchBucket"}, writeOnly: true, want: BucketGone, waited: time.Minute},
		"to write only, gone and back": {answers: []string{"NoSuchBucket", "AccessDenied"}, writeOnly: true, waited: time.Minute},
	} {
		var asked atomic.Int32
		b := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")); err == nil {
				w.Header().Set("Date", at.Format(http.TimeFormat)) // its clock is that of who asks
			}
			n := int(asked.Add(1))
			if answer := tc.answers[min(n, len(tc.answers))-1]; answer == "list" {
				respond(200, nil, list)(w, r)
			} else {
				respond(403, nil, s3Error(answer, ""))(w, r)
			}
		})
		b.WriteOnly = tc.writeOnly
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			report := Check(t.Context(), b)
			waited := time.Since(began)
			if got := append(report.Conditions, Condition{})[0]; got.Reason != tc.want || waited.Round(time.Second) != tc.waited {
				t.Errorf("%s: after %s: %+v", name, waited, report)
			}
		})
	}
}

// TestAnswersThatAlternate: no answer is confirmed, and the check ends all the same.
func TestAnswersThatAlternate(t *testing.T) {
	var asked atomic.Int32
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		respond(403, nil, s3Error([]string{"AccessDenied", "NoSuchBucket"}[asked.Add(1)%2], ""))(w, r)
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		began := time.Now()
		if report := Check(ctx, b); report.Verdict != NotJudged || time.Since(began).Round(time.Second) != 2*time.Minute {
			t.Errorf("after %s: %v", time.Since(began), report)
		}
	})
}

// TestNoTimeToConfirm ends before the second question.
func TestNoTimeToConfirm(t *testing.T) {
	b := serve(t, respond(404, nil, s3Error("NoSuchBucket", "")))
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		if report := Check(ctx, b); report.Verdict != NotJudged || !strings.Contains(report.Message, "404, NoSuchBucket") || !strings.HasSuffix(report.Message, "there was no time to ask again") {
			t.Error(report)
		}
	})
}

func TestExpiry(t *testing.T) {
	for left, want := range map[time.Duration]healer.Status{time.Hour: "", 14 * time.Minute: healer.Degraded, -time.Minute: healer.Degraded} {
		b := serve(t, respond(200, nil, list))
		b.Expires = time.Now().Add(left).UTC()
		report := Check(t.Context(), b)
		if got := append(report.Conditions, Condition{})[0]; got.Status != want || want != "" && !strings.Contains(report.Message, "CredentialsExpired (their end is "+b.Expires.Format(time.RFC3339)) {
			t.Errorf("%s: %v", left, report)
		}
	}
	b := serve(t, respond(400, nil, s3Error("ExpiredToken", "")))
	b.Expires = time.Now().Add(-time.Hour)
	if report := Check(t.Context(), b); len(report.Conditions) != 1 || report.Conditions[0].Status != healer.Inaccessible {
		t.Error(report)
	}
}

// TestEveryReasonIsInTheTable has each with a class and an advice.
func TestEveryReasonIsInTheTable(t *testing.T) {
	for _, r := range Rows() {
		c := r.Condition
		if complete := c.Status != "" && c.Tier != "" && c.Type != "" && c.Advice != ""; complete != (c.Reason != "") {
			t.Errorf("%+v", r)
		}
		if len(r.Codes)+len(r.Statuses) == 0 {
			t.Errorf("%+v fits nothing", r)
		}
	}
}

// TestASecretIsNeverPrinted tries the ways.
func TestASecretIsNeverPrinted(t *testing.T) {
	b := Bucket{AccessKeyID: "c4n4ry", SecretAccessKey: "c4n4ry", SessionToken: "c4n4ry"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		for _, text := range []string{fmt.Sprintf(verb, b), fmt.Sprintf(verb, &b), fmt.Sprintf(verb, b.SecretAccessKey), fmt.Sprintf(verb, []Bucket{b})} {
			if strings.Contains(text, "c4n4ry") || strings.Contains(strings.ToLower(text), fmt.Sprintf("%x", "c4n4ry")) {
				t.Errorf("%s: %s", verb, text)
			}
		}
	}
}
