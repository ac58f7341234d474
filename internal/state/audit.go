package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// auditLimit is the size in bytes at which the audit log is renamed to audit.log.1, so
// that both together stay below twice that.
const auditLimit = 1 << 20

// auditVersion is that of a line; a line without one is of version 0. Keys may be added
// to a version.
const auditVersion = 1

// Audit is the log of mutating operations: one JSON line before each and one
// after it. A line is on disk before its operation begins.
type Audit struct {
	path  string
	limit int64

	mu sync.Mutex
}

// Audit returns the directory's audit log.
func (d *Dir) Audit() *Audit {
	return &Audit{path: filepath.Join(d.path, "audit.log"), limit: auditLimit}
}

// Before implements healer.Audit.
func (a *Audit) Before(e ...healer.AuditEntry) error { return a.write("before", e) }

// After implements healer.Audit.
func (a *Audit) After(e ...healer.AuditEntry) error { return a.write("after", e) }

func (a *Audit) write(when string, entries []healer.AuditEntry) error {
	var line []byte
	for _, e := range entries {
		one, err := json.Marshal(struct {
			Version int       `json:"version"`
			Time    time.Time `json:"time"`
			When    string    `json:"when"`
			healer.AuditEntry
		}{auditVersion, time.Now().UTC(), when, e})
		if err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
		line = append(append(line, one...), '\n')
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.append(line); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

// append opens the log for each line: a person may have moved it away, or the whole directory, and
// what is written to that nobody reads.
func (a *Audit) append(line []byte) (err error) {
	here, err := os.Stat(a.path)
	if err == nil && here.Size() > 0 && here.Size()+int64(len(line)) >= a.limit {
		err = os.Rename(a.path, a.path+".1")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(a.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, fileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], end-1); err == nil && last[0] != '\n' { // a crash cut the last line off
		line = append([]byte{'\n'}, line...)
	}
	if _, err := f.Write(line); err != nil {
		return err
	}
	return f.Sync()
}

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
