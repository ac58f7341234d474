package healer

import "github.com/csi-addons/node-healer/pkg/api"

// AuditEntry is one line of the audit log.
type AuditEntry struct {
	Driver     string `json:"driver"`
	VolumeID   string `json:"volumeID"`
	Step       string `json:"step"`
	MountPoint string `json:"mountPoint"`
	Source     string `json:"source"`
	// Caller is on whose behalf it was done (WithCaller).
	Caller string `json:"caller,omitempty"`
	// Outcome is empty before the operation, then "done" or the error, whose class is in
	// Tier and ErrorType, too.
	Outcome   string   `json:"outcome,omitempty"`
	Tier      api.Tier `json:"tier,omitempty"`
	ErrorType api.Type `json:"error_type,omitempty"`
}
