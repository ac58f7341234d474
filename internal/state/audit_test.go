package state

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

type auditLine struct {
	Time time.Time `json:"time"`
	When string    `json:"when"`
	healer.AuditEntry
}

func openAudit(t *testing.T) *Audit {
	t.Helper()
	d, _ := openDir(t)
	return d.Audit()
}

// readAudit returns the lines of a log; every line must be whole.
func readAudit(t *testing.T, path string) []auditLine {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []auditLine
	for in := bufio.NewScanner(f); in.Scan(); {
		var l auditLine
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			t.Fatalf("line %d, %q: %v", len(lines)+1, in.Text(), err)
		}
		lines = append(lines, l)
	}
	return lines
}

func TestAuditWritesBeforeAndAfter(t *testing.T) {
	a := openAudit(t)
	e := healer.AuditEntry{Driver: driver, VolumeID: "v\n\"1\"", Step: "rebind", MountPoint: "/k/a b", Source: "8:16"}
	if err := a.Before(e); err != nil {
		t.Fatal(err)
	}
	if lines := readAudit(t, a.path); len(lines) != 1 || lines[0].When != "before" || lines[0].AuditEntry != e {
		t.Fatalf("before the operation: %+v", lines)
	}
	e.Outcome = "done"
	if err := a.After(e); err != nil {
		t.Fatal(err)
	}
	lines := readAudit(t, a.path)
	if len(lines) != 2 || lines[1].When != "after" || lines[1].AuditEntry != e || time.Since(lines[1].Time) > time.Minute {
		t.Errorf("%+v", lines)
	}
}

// What runs at several mount points at once has a line for each.
func TestAuditOfSeveralMountPoints(t *testing.T) {
	a := openAudit(t)
	one, two := healer.AuditEntry{Step: "replace-in-container", MountPoint: "/proc/7/root/data"}, healer.AuditEntry{Step: "replace-in-container", MountPoint: "/proc/8/root/data"}
	if err := a.Before(one, two); err != nil {
		t.Fatal(err)
	}
	one.Outcome, two.Outcome = "done", "refused: it answers"
	if err := a.After(one, two); err != nil {
		t.Fatal(err)
	}
	lines := readAudit(t, a.path)
	if len(lines) != 4 || lines[0].When != "before" || lines[1].When != "before" || lines[2].AuditEntry != one || lines[3].AuditEntry != two {
		t.Errorf("%+v", lines)
	}
}

func TestAuditIsBounded(t *testing.T) {
	a := openAudit(t)
	a.limit = 4096
	e := healer.AuditEntry{VolumeID: strings.Repeat("v", 100), Step: "rebind"}
	const n = 200
	for range n {
		if err := a.Before(e); err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, p := range []string{a.path, a.path + ".1"} {
			if info, err := os.Stat(p); err == nil {
				sum += info.Size()
				if info.Mode().Perm() != 0o600 {
					t.Fatalf("%s has mode %o", p, info.Mode().Perm())
				}
			}
		}
		if sum > 2*a.limit {
			t.Fatalf("both files have %d bytes", sum)
		}
	}
	if kept := len(readAudit(t, a.path)) + len(readAudit(t, a.path+".1")); kept < 10 {
		t.Errorf("only %d lines are kept", kept)
	}
}

func TestAuditGoesOnWhereItWas(t *testing.T) {
	d, _ := openDir(t)
	for range 2 {
		if err := d.Audit().Before(healer.AuditEntry{Step: "rebind"}); err != nil {
			t.Fatal(err)
		}
	}
	if lines := readAudit(t, d.Audit().path); len(lines) != 2 {
		t.Errorf("%d lines", len(lines))
	}
}

// A crash in the middle of a line costs that line, not the next one.
func TestAuditAfterATornLine(t *testing.T) {
	a := openAudit(t)
	if err := os.WriteFile(a.path, []byte(`{"time":"2026`), fileMode); err != nil {
		t.Fatal(err)
	}
	if err := a.Before(healer.AuditEntry{Step: "rebind"}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(a.path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if last := lines[len(lines)-1]; !json.Valid([]byte(last)) {
		t.Errorf("the line after a torn one is unreadable: %q", last)
	}
}

// Somebody removed the log, or moved it away: writing, and with it healing, goes on where it is read. Where
// the directory is gone, nothing is done that no log would have.
func TestAuditSurvivesItsRemoval(t *testing.T) {
	a := openAudit(t)
	for name, away := range map[string]func() error{
		"removed": func() error { return os.Remove(a.path) },
		"moved":   func() error { return os.Rename(a.path, a.path+".old") },
	} {
		if err := errors.Join(a.Before(healer.AuditEntry{Step: "before"}), away()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := a.Before(healer.AuditEntry{VolumeID: name, Step: "rebind"}); err != nil {
				t.Fatal(err)
			}
		}
		if lines := readAudit(t, a.path); len(lines) != 2 || lines[0].VolumeID != name {
			t.Errorf("%s: the log has %+v", name, lines)
		}
	}
	if err := os.RemoveAll(filepath.Dir(a.path)); err != nil {
		t.Fatal(err)
	}
	if err := a.Before(healer.AuditEntry{Step: "rebind"}); err == nil {
		t.Error("no error without the directory")
	}
}

func TestAuditThatCannotBeWrittenSaysSo(t *testing.T) {
	a := openAudit(t)
	if err := os.Mkdir(a.path, dirMode); err != nil {
		t.Fatal(err)
	}
	if err := a.Before(healer.AuditEntry{Step: "rebind"}); err == nil {
		t.Error("no error")
	}
}
