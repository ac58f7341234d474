package integration

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// auditLine is what tests read of a line of the audit log.
type auditLine struct {
	Time, When, Driver, VolumeID, Step, MountPoint, Caller, Outcome string
}

// auditOf reads the audit log, with the part that was rotated away last.
func auditOf(t testing.TB, n *harness.Node) (lines []auditLine) {
	t.Helper()
	for _, name := range []string{"audit.log.1", "audit.log"} {
		raw, err := os.ReadFile(filepath.Join(n.StateDir(), name))
		if !errors.Is(err, fs.ErrNotExist) {
			harness.Must(t, err)
		}
		for line := range strings.Lines(string(raw)) {
			var e auditLine
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Time == "" || e.VolumeID == "" || e.Step == "" || e.MountPoint == "" {
				t.Errorf("a line of %s: %v %q", name, err, line)
			}
			lines = append(lines, e)
		}
	}
	return lines
}
