package retry

import (
	"testing"
	"time"
)

func TestSchedules(t *testing.T) {
	for _, s := range append(Schedules(), From(time.Minute)) {
		want := s.First
		for failures := range 40 {
			got := s.After(failures)
			if failures > 1 {
				want = min(2*want, s.Max)
			}
			if got != want {
				t.Errorf("%s: %s after %d failures, want %s", s.What, got, failures, want)
			}
			if late := s.AfterWithJitter(failures); late < got || late > got+got/5 {
				t.Errorf("%s: %s with jitter after %d failures", s.What, late, failures)
			}
		}
		if got := s.After(1 << 30); got != s.Max {
			t.Errorf("%s: %s after very many failures", s.What, got)
		}
	}
}

// Nodes that failed together do not stay together.
func TestJitterSpreads(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[Outage.AfterWithJitter(30)] = true
	}
	if len(seen) < 50 {
		t.Errorf("100 nodes wait for %d different times", len(seen))
	}
}
