package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

	mu   sync.Mutex
	file *os.File
	// own is what is at path while nobody moved the log away.
	own  fs.FileInfo
	size int64
	// torn is true when the last line may be incomplete.
	torn bool
}

// Audit opens the directory's audit log.
func (d *Dir) Audit() (*Audit, error) {
	a := &Audit{path: filepath.Join(d.path, "audit.log"), limit: auditLimit}
	return a, a.open()
}

func (a *Audit) open() error {
	f, err := os.OpenFile(a.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, fileMode)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("audit log: %w", err), f.Close())
	}
	a.file, a.own, a.size, a.torn = f, info, info.Size(), false
	var last [1]byte
	if _, err := f.ReadAt(last[:], info.Size()-1); err == nil {
		a.torn = last[0] != '\n'
	}
	return nil
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
	// A person may have moved the log away, or the whole directory: what is written to that nobody reads.
	if here, err := os.Stat(a.path); err != nil || !os.SameFile(here, a.own) {
		if err := a.reopen(); err != nil {
			return err
		}
	}
	if a.torn {
		line = append([]byte{'\n'}, line...)
	}
	if a.size+int64(len(line)) > a.limit && a.size > 0 {
		if err := a.rotate(); err != nil {
			return err
		}
	}
	n, err := a.file.Write(line)
	a.size += int64(n)
	a.torn = err != nil
	if err == nil {
		err = a.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

func (a *Audit) rotate() error {
	if err := os.Rename(a.path, a.path+".1"); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return a.reopen()
}

func (a *Audit) reopen() error {
	old := a.file
	if err := a.open(); err != nil {
		return err
	}
	return old.Close()
}

// Close closes the log.
func (a *Audit) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Close()
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
