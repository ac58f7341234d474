package nodeserver

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// auditLines is a log of these lines.
type auditLines []string

func (l auditLines) Last(string, int) (lines [][]byte, err error) {
	for _, line := range l {
		lines = append(lines, []byte(line))
	}
	return lines, nil
}

// auditText is a line that has this volume ID and outcome, as internal/state writes it.
func auditText(t *testing.T, id, outcome string) string {
	t.Helper()
	line, err := json.Marshal(healer.AuditEntry{VolumeID: id, Step: "rebind", MountPoint: "/p", Outcome: outcome})
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}

// JSON stays as it is, whatever its texts are, so that a client can read every line.
func TestReadAuditKeepsJSON(t *testing.T) {
	ids := []string{"vol-1", "del\x7f", "tag\U000e0001", strings.Repeat("\x01", 900), "esc\x1b[2J\u202e"}
	var log auditLines
	for _, id := range ids {
		log = append(log, auditText(t, id, "done"))
	}
	got := readAudit(t, append(log, `{"volumeID":"torn`+"\x7f\xff"))
	if len(got) != len(ids)+1 {
		t.Fatalf("%d lines", len(got))
	}
	for i, line := range log {
		if got[i] != line {
			t.Errorf("%q became %q", line, got[i])
		}
	}
	if torn := got[len(ids)]; torn != `{"volumeID":"torn\x7f\xff` {
		t.Errorf("torn: %q", torn)
	}
}

// A line that no answer should hold is cut.
func TestReadAuditCutsLongLines(t *testing.T) {
	got := readAudit(t, auditLines{auditText(t, "vol-1", strings.Repeat("x", maxAuditLineBytes)), "no JSON"})
	if len(got) != 2 || len(got[0]) > adminTextBytes || got[1] != "no JSON" {
		t.Errorf("%q", got)
	}
}

func readAudit(t *testing.T, log AuditLog) (lines []string) {
	t.Helper()
	cfg := testConfig(&fakeHealer{})
	cfg.Volumes, cfg.Audit = fakeVolumes{}, log
	stream, err := adminpb.NewAdminClient(serve(t, cfg).conn).ReadAudit(testContext(t), &adminpb.ReadAuditRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		line, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return lines
		case err != nil:
			t.Fatal(err)
		}
		lines = append(lines, line.GetJson())
	}
}
