package bench

import (
	"fmt"
	"slices"
	"time"
)

// times are durations of the same thing done again and again.
type times []time.Duration

// quantile returns the time that a share of them stays below or reaches.
func (t times) quantile(share float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

func (t times) median() time.Duration { return t.quantile(0.5) }

// micro writes a duration in microseconds, milli in milliseconds.
func micro(d time.Duration) string { return fmt.Sprintf("%.1f us", float64(d)/1e3) }

func milli(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }
