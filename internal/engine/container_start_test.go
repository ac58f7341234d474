package engine

import (
	"testing"
	"time"
)

// A start is cut to a hundredth of a second: one that may lie in the gap counts.
func TestGapHas(t *testing.T) {
	g := gap{1004 * time.Millisecond, 2006 * time.Millisecond}
	for started, want := range map[time.Duration]bool{
		990 * time.Millisecond: false, time.Second: true, 1500 * time.Millisecond: true, 2 * time.Second: true, 2010 * time.Millisecond: false,
	} {
		if g.has(started) != want {
			t.Errorf("%s: want %v", started, want)
		}
	}
	if (gap{}).has(time.Second) {
		t.Error("no gap has a start")
	}
}
