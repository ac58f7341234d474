package healer

import (
	"slices"
	"strings"
	"testing"
)

// adviceFor is a condition whose advice names its reason, and says whether it deletes pods.
func adviceFor(r Reason) Condition {
	text := "repair " + string(r)
	if rankOf(r) == adviceDelete {
		text = "delete the pod for " + string(r)
	}
	return Condition{Status: Inaccessible, Reason: r, MountPoint: "/" + string(r), Advice: text}
}

// For each pair of reasons, at two mount points: the order does not depend on that of the
// conditions, something is always advised, no pod is deleted while there is something to save,
// and only what passes with the other is left out.
func TestAdviceOfAllPairs(t *testing.T) {
	all := append(Reasons(), "SomebodyElses")
	for _, a := range all {
		for _, b := range all {
			one, two := adviceFor(a), adviceFor(b)
			got := Diagnosis{Conditions: []Condition{one, two}}.Advice()
			if turned := (Diagnosis{Conditions: []Condition{two, one}}).Advice(); !slices.Equal(got, turned) {
				t.Errorf("%s and %s: %q, turned %q", a, b, got, turned)
			}
			if len(got) == 0 {
				t.Errorf("%s and %s: nothing is advised", a, b)
				continue
			}
			saves := rankOf(a) == adviceSave || rankOf(b) == adviceSave
			if saves && slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "delete the pod") }) {
				t.Errorf("%s and %s: a pod is deleted while files have to be saved: %q", a, b, got)
			}
			for _, c := range []Condition{one, two} {
				if rankOf(c.Reason) == adviceSave && !slices.Contains(got, c.Advice) {
					t.Errorf("%s and %s: what saves files is not advised: %q", a, b, got)
				}
			}
			if rankOf(a) < rankOf(b) && got[0] != one.Advice {
				t.Errorf("%s and %s: first is %q", a, b, got[0])
			}
		}
	}
}

// Nothing is advised beside saving files that would go with a pod, also where most volumes of the same
// reason have none to save.
func TestAdviceThatSavesFilesStandsAlone(t *testing.T) {
	save := Condition{Reason: ContainerUnverified, Advice: "copy the files", SaveFirst: true}
	for _, r := range Reasons() {
		got := Diagnosis{Conditions: []Condition{adviceFor(r), save}}.Advice()
		deletes := func(s string) bool { return strings.HasPrefix(s, "delete the pod") }
		if !slices.Contains(got, save.Advice) || slices.ContainsFunc(got, deletes) {
			t.Errorf("%s: %q", r, got)
		}
	}
}

// A stopped daemon has one whole cure, whatever else is seen of it.
func TestAdviceOfAStoppedDaemon(t *testing.T) {
	got := Diagnosis{Conditions: []Condition{adviceFor(NotResponding), adviceFor(SlowResponse), adviceFor(DaemonStopped)}}.Advice()
	if !slices.Equal(got, []string{adviceFor(DaemonStopped).Advice}) {
		t.Errorf("%q", got)
	}
}

// Reasons that make each other's advice needless would leave none.
func TestNoAdviceIsLostInACircle(t *testing.T) {
	for r, of := range adviceOf {
		for _, other := range of.instead {
			if slices.Contains(adviceOf[other].instead, r) || rankOf(other) == adviceSave {
				t.Errorf("%s makes %s needless", r, other)
			}
		}
	}
}

// What the tables do not know may delete anything.
func TestAdviceIsInOrderAndSaidOnce(t *testing.T) {
	conditions := []Condition{adviceFor(NotMounted), adviceFor("SomebodyElses"), adviceFor(OutOfSpace), adviceFor(DaemonStopped), adviceFor(OutOfSpace)}
	conditions[4].MountPoint = "/elsewhere"
	want := []string{adviceFor(DaemonStopped).Advice, adviceFor(OutOfSpace).Advice, adviceFor(NotMounted).Advice, adviceFor("SomebodyElses").Advice}
	if got := (Diagnosis{Conditions: conditions}).Advice(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := (Diagnosis{Conditions: append(conditions, adviceFor(TargetNotEmpty))}).Advice(); len(got) != 3 || got[1] != adviceFor(TargetNotEmpty).Advice {
		t.Errorf("with files to save: %q", got)
	}
}
