package harness

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// slow is how many times slower this machine is than an idle one, at least 1. All
// deadlines of the tests are multiplied by it, and the timeouts of the servers under
// test: a busy machine shall not look like a volume that does not answer.
var slow = 1.0

// slowEnv is the environment variable that says so. Without it the factor is found out.
const slowEnv = "TEST_SLOW"

// setSlow sets the factor and what depends on it.
func setSlow(factor float64) {
	slow = max(factor, 1)
	Patience = Slowly(Patience)
	faultfs.Patience = Patience
}

// maxSlow bounds the factor: a test that waits for timeouts still has to end.
const maxSlow = 3

// measureSlow starts workers, which end at once as nobody calls them.
func measureSlow() float64 {
	if given, err := strconv.ParseFloat(os.Getenv(slowEnv), 64); err == nil {
		return given
	}
	worker := filepath.Join(bin, "node-healer-worker")
	if _, err := os.Stat(worker); err != nil {
		return 1
	}
	var took, ran time.Duration
	for range 15 {
		cmd, begin := exec.Command(worker), time.Now()
		_ = cmd.Run()
		took += time.Since(begin)
		if cmd.ProcessState != nil {
			ran += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
	}
	// On an idle machine a start takes about as long as it uses a processor.
	factor := math.Round(min(took.Seconds()/max(ran.Seconds(), 0.001), maxSlow))
	if factor <= 1 {
		return 1
	}
	fmt.Printf("this machine is busy: all deadlines of tests are %g times as long (%s)\n", factor, slowEnv)
	return factor
}

// Slowly is how long something may take on this machine that takes d on an idle one.
func Slowly(d time.Duration) time.Duration { return time.Duration(slow * float64(d)) }

// scaled are the server's timeouts that Slowly lengthens, and the default of the one
// that matters also where a test does not name it.
var scaled = []struct {
	flag          string
	standard, max time.Duration
}{
	{"--probe-timeout=", 5 * time.Second, time.Minute},
	{"--slow-answer=", 0, time.Minute},
	{"--heal-timeout=", 0, time.Hour},
	{"--driver-timeout=", 0, time.Hour},
}

// slowArgs are arguments of a server with timeouts for this machine. Those that a
// server refuses stay as they are.
func slowArgs(args []string) []string {
	args = usualSlowAnswer(slices.Clone(args))
	for _, s := range scaled {
		of := func(given string) bool { return strings.HasPrefix(given, s.flag) }
		if slow > 1 && s.standard > 0 && !slices.ContainsFunc(args, of) {
			args = append(args, s.flag+s.standard.String())
		}
		for i := range args {
			if d, err := time.ParseDuration(strings.TrimPrefix(args[i], s.flag)); of(args[i]) && err == nil && d > 0 {
				args[i] = s.flag + min(Slowly(d), max(d, s.max)).String()
			}
		}
	}
	return args
}

// usualSlowAnswer adds when an answer is late to arguments with a short --probe-timeout, of which the
// server would take a fifth: a test whose storage does not answer would find others slow.
func usualSlowAnswer(args []string) []string {
	const probe, late, usual = "--probe-timeout=", "--slow-answer=", time.Second
	within := time.Hour
	for _, a := range args {
		if strings.HasPrefix(a, late) {
			return args
		}
		if d, err := time.ParseDuration(strings.TrimPrefix(a, probe)); strings.HasPrefix(a, probe) && err == nil {
			within = d // the last one counts
		}
	}
	if within >= scaled[0].standard {
		return args
	}
	return append(args, late+min(within, usual).String())
}
