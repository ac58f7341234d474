package healer

import "testing"

// What could not be judged is never healthy, and never hides what is wrong.
func TestVerdictOfWhatCouldNotBeJudged(t *testing.T) {
	unjudged := Case{Unjudged: []Unjudged{{Why: "nobody says"}}}
	sick := []Condition{{Reason: NotMounted}}
	helped := []Outcome{{Step: "rebind"}}
	for name, tc := range map[string]struct {
		report Report
		want   Verdict
	}{
		"nothing is wrong":      {Report{After: Diagnosis{Case: unjudged}}, NotJudged},
		"something is wrong":    {Report{After: Diagnosis{Case: unjudged, Conditions: sick}}, Abnormal},
		"a provider failed":     {Report{After: Diagnosis{Case: unjudged, Failures: []ProviderFailure{{}}}}, Abnormal},
		"the rest was healed":   {Report{Before: Diagnosis{Conditions: sick}, Steps: helped, After: Diagnosis{Case: unjudged}}, NotJudged},
		"it is judged by now":   {Report{Before: Diagnosis{Case: unjudged}}, Healthy},
		"it was healed by now":  {Report{Before: Diagnosis{Case: unjudged}, Steps: helped}, Healed},
		"nothing to be judged":  {Report{}, Healthy},
		"nothing, and was sick": {Report{Before: Diagnosis{Conditions: sick}, Steps: helped}, Healed},
	} {
		if got := tc.report.Verdict(); got != tc.want {
			t.Errorf("%s: %s", name, got)
		}
		if healthy := tc.report.After.Healthy(); healthy != (tc.want == Healthy || tc.want == Healed) {
			t.Errorf("%s: healthy: %t", name, healthy)
		}
	}
	if got := (Diagnosis{Case: unjudged}).HealthEntries(); len(got) != 1 || got[0] != (HealthEntry{Unknown, ReasonUnjudged}) {
		t.Errorf("%+v", got)
	}
}
