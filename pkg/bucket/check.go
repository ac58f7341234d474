package bucket

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// maxSkew is by how much the clocks may differ; servers refuse 15 minutes.
	maxSkew = 5 * time.Minute
	// expiryWarning is how long before their end credentials are named.
	expiryWarning = 15 * time.Minute
	// checkTime is for answers that have to be confirmed one after the other: a server may give
	// two by turns for ever.
	checkTime = 2 * time.Minute
)

// The verdicts. NotJudged: no answer says something of the bucket.
const (
	Healthy   = "healthy"
	Abnormal  = "abnormal"
	NotJudged = "not judged"
)

// Report is what a check found.
type Report struct {
	Verdict    string      `json:"verdict"`
	Message    string      `json:"message"`
	Conditions []Condition `json:"conditions"`
}

// Unusable is the report where there was nothing to ask, or no time to.
func Unusable(err error) Report {
	return Report{Verdict: NotJudged, Message: fmt.Sprintf("%s: %v", NotJudged, err), Conditions: []Condition{}}
}

// Check asks the server of b, and again until its answer is certain, for checkTime at most.
func Check(ctx context.Context, b Bucket) Report {
	var m memory
	late := time.After(checkTime)
	for {
		a, err := ask(ctx, b)
		if err != nil {
			return Unusable(err)
		}
		again := m.learn(b, a)
		if again <= 0 {
			return m.report
		}
		select {
		case <-time.After(again):
			continue
		case <-late:
		case <-ctx.Done():
		}
		return Unusable(fmt.Errorf("%s, and there was no time to ask again", a.evidence()))
	}
}

// diagnose returns what an answer says of b: its condition in the table, and those beside it.
func diagnose(b Bucket, a answer, condition Condition, known bool) Report {
	report := Report{Verdict: Healthy, Conditions: []Condition{}}
	if !known {
		report.Verdict = NotJudged
	}
	report.add(condition, a.evidence())
	if a.Ahead.Abs() > maxSkew {
		beside, _ := rowOf(answer{Code: clockOff})
		report.add(beside.Condition, a.evidence())
	}
	if !b.Expires.IsZero() && b.Expires.Sub(a.Time) < expiryWarning {
		beside, _ := rowOf(answer{Code: expiring})
		report.add(beside.Condition, "their end is "+b.Expires.Format(time.RFC3339))
	}
	report.Message = report.message(a)
	return report
}

// add adds a condition, if there is one, and it is not there already.
func (r *Report) add(c Condition, evidence string) {
	if c.Reason == "" || slices.ContainsFunc(r.Conditions, func(o Condition) bool { return o.Reason == c.Reason }) {
		return
	}
	r.Verdict, c.Message = Abnormal, evidence
	r.Conditions = append(r.Conditions, c)
}

// message is the report in a line. It names neither bucket nor server, which are a credential where
// two keys of a Secret are mixed up:
//
//	abnormal: CredentialsRefused (403, InvalidAccessKeyId). To do: issue ...
func (r Report) message(a answer) string {
	var conditions, advice []string
	for _, c := range r.Conditions {
		conditions = append(conditions, fmt.Sprintf("%s (%s)", c.Reason, c.Message))
		advice = append(advice, c.Advice)
	}
	if len(conditions) == 0 {
		return r.Verdict + ": " + a.evidence()
	}
	return r.Verdict + ": " + strings.Join(conditions, "; ") + ". To do: " + strings.Join(advice, "; ")
}
