package nodeserver

import (
	"cmp"
	"encoding/json"

	"google.golang.org/grpc"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// maxAuditLines bounds one answer, defaultAuditLines is what 0 stands for.
	maxAuditLines     = 1000
	defaultAuditLines = 100
	// maxAuditLineBytes holds an entry of ten texts of a kilobyte each, also when they
	// consist of control characters: JSON writes six bytes for each.
	maxAuditLineBytes = maxResponseBytes / 4
)

// AuditLog reads the log of mutating operations; *state.Audit is one.
type AuditLog interface {
	// Last returns lines of JSON, the oldest first; an empty ID stands for all volumes.
	Last(volumeID string, limit int) ([][]byte, error)
}

func (a admin) ReadAudit(req *adminpb.ReadAuditRequest, stream grpc.ServerStreamingServer[adminpb.AuditLine]) error {
	limit := cmp.Or(int(req.GetLimit()), defaultAuditLines)
	if limit < 0 || limit > maxAuditLines {
		return toStatus(healer.Invalid("limit", "must be between 1 and %d", maxAuditLines))
	}
	lines, err := a.server.cfg.Audit.Last(req.GetVolumeId(), limit)
	if err != nil {
		return toStatus(healer.Failed("read the audit log", err))
	}
	for _, line := range lines {
		if err := stream.Send(&adminpb.AuditLine{Json: auditLine(line)}); err != nil {
			return err
		}
	}
	return nil
}

// auditLine returns a line of the log as it is. One that is no JSON, or too long, is sent as printable text.
func auditLine(line []byte) string {
	if len(line) <= maxAuditLineBytes && json.Valid(line) {
		return valid(string(line))
	}
	return printable.Line(string(line), adminTextBytes)
}
