package harness

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// Patience bounds every wait of the tests. It is no claim about speed, and
// longer on a busy machine (setSlow).
var Patience = 2 * time.Minute

// Must fails the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Mkdir makes a directory and those above it.
func Mkdir(t testing.TB, path string) {
	t.Helper()
	Must(t, os.MkdirAll(path, 0o755))
}

// Run executes a program, fails the test when it fails, and returns its output.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// Eventually waits for something that another process does.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(Pause(begun)) {
		if time.Since(begun) > Patience {
			t.Fatalf("not seen in time: %s", what)
		}
	}
}

// Pause is the time between two looks for something: an eighth of that since the first, as
// who has waited for a second can wait for one more moment, and each look takes processor
// time from what is waited for.
func Pause(begun time.Time) time.Duration {
	return min(max(time.Since(begun)/8, 2*time.Millisecond), 100*time.Millisecond)
}
