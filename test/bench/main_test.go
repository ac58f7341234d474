// Package bench measures a node-healer as it is released: its binaries, real
// volumes on a real kernel, and callers in processes of their own. It prints
// ratios of things measured side by side in one run, because the times
// themselves are the machine's. No time ever fails it; what does not work does.
//
// `make bench` runs it. docs/performance.md has some results.
package bench

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// wantedEnv lists the lines to measure (see the calls of wanted), or is `all`.
// Without it nothing runs: `go test ./...` shall not take minutes.
const wantedEnv = "BENCH"

func TestMain(m *testing.M) {
	faultfs.Main()
	agentMain()
	if os.Getenv(wantedEnv) == "" {
		fmt.Println("nothing is measured unless", wantedEnv, "names lines, or is all: see make bench")
		return
	}
	guard()
	harness.Main(m, harness.Plain, cluster.Stop)
}

// wanted skips a test that measures none of the lines that were asked for, and
// says which of its own were.
func wanted(t *testing.T, lines ...string) map[string]bool {
	t.Helper()
	harness.NeedsRoot(t)
	asked := strings.FieldsFunc(os.Getenv(wantedEnv), func(r rune) bool { return r == ' ' || r == ',' })
	is := map[string]bool{}
	for _, line := range lines {
		if slices.Contains(asked, "all") || slices.Contains(asked, line) {
			is[line] = true
		}
	}
	if len(is) == 0 {
		t.Skip("not asked for")
	}
	return is
}
