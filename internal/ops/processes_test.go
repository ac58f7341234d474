package ops

import (
	"fmt"
	"testing"
	"time"
)

// walked returns the answer of a walk that has read all processes: one does without those that a busy
// machine does not let it read in time.
func walked(t *testing.T, walk func() (ProcessesAnswer, error)) ProcessesAnswer {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		a, err := walk()
		must(t, err)
		if !a.Cut && a.Unread == 0 || time.Now().After(end) {
			return a
		}
	}
}

// daemonsWalked walks for the FUSE daemons.
func daemonsWalked(t *testing.T, q ProcessesQuery) ProcessesAnswer {
	t.Helper()
	q.Daemons, q.Budget = true, time.Minute
	return walked(t, func() (ProcessesAnswer, error) { return processes(q) })
}

// A process that could not be read in time may be anything.
func TestProcessThatIsNotReadInTime(t *testing.T) {
	proc := procTree(t, map[int]map[string]string{10: {"stat": "FIFO", "cgroup": "0::" + inA + "\n"}})
	s := &scan{proc: proc, end: time.Now().Add(time.Minute)}
	a, err := s.processes(&owners{}, ProcessesQuery{})
	if err != nil || !a.Cut {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestParseStat(t *testing.T) {
	rest := " S 1 2 3 4 5 4194560 7 8 9 10 11 12 13 14 15 16 17 18 4711 0 0"
	for text, want := range map[string]string{
		"7 (sh)" + rest:            "sh S false 47.11s",
		"7 (a) R 1 (b)" + rest:     "a) R 1 (b S false 47.11s",
		"7 (a\nb)" + rest + "\n":   "a\nb S false 47.11s",
		"7 ()" + rest:              " S false 47.11s",
		"7 (sh) S 1 2 3":           "",
		"7 sh S 1":                 "",
		"":                         "",
		"7 )sh(" + rest:            "",
		"7 (sh) S" + "9 x y z ) (": "",
		"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 466 0 0 20 0 1 0 25 0 0": "kthreadd S true 250ms",
		"2 (sh) S 0 0 0 0 -1 x 0 0 0 0 0 466 0 0 20 0 1 0 25 0 0":             "",
	} {
		st, err := parseStat([]byte(text))
		if got := fmt.Sprintf("%s %c %v %s", st.name, st.state, st.kernel, st.started); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
