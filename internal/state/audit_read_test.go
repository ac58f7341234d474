package state

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestLast(t *testing.T) {
	a := openAudit(t)
	a.limit = 2000
	if lines, err := a.Last("", 10); err != nil || len(lines) != 0 {
		t.Errorf("an empty log: %q, %v", lines, err)
	}
	for i := range 20 { // more than one file
		if err := a.Before(healer.AuditEntry{VolumeID: fmt.Sprint("v", i%2), Step: fmt.Sprint("step-", i)}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(a.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"volumeID":"v1","st`); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	lines, err := a.Last("v1", 3)
	if err != nil || len(lines) != 3 {
		t.Fatalf("%q, %v", lines, err)
	}
	for i, want := range []string{"step-15", "step-17", "step-19"} {
		if !strings.Contains(string(lines[i]), want) {
			t.Errorf("%s is not about %s", lines[i], want)
		}
	}
	if all, err := a.Last("", 1000); err != nil || len(all) < 10 {
		t.Errorf("%d lines, %v", len(all), err)
	}
}
