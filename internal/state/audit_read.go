package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Last returns the last lines of the log that are about a volume, or of all with an empty
// ID, the oldest first. A line that was cut off by a crash is left out.
func (a *Audit) Last(volumeID string, limit int) (lines [][]byte, err error) {
	a.mu.Lock()
	older, err := readLog(a.path + ".1")
	newer, newErr := readLog(a.path)
	a.mu.Unlock()
	if err := errors.Join(err, newErr); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	for _, log := range [][]byte{older, newer} {
		for line := range bytes.Lines(log) {
			line = bytes.TrimSpace(line)
			var e struct {
				VolumeID string `json:"volumeID"`
			}
			if json.Unmarshal(line, &e) == nil && (volumeID == "" || e.VolumeID == volumeID) {
				lines = append(lines, line)
			}
		}
	}
	return lines[max(0, len(lines)-limit):], nil
}

// readLog returns a file of at most auditLimit bytes, or a little more.
func readLog(path string) ([]byte, error) {
	raw, err := os.ReadFile(path) //nolint:gosec // in the state directory
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return raw, err
}
