package host

import (
	"encoding/json"
	"fmt"

	"github.com/csi-addons/node-healer/internal/ops"
)

// VolData is the part of kubelet's vol_data.json that identifies a volume (CSI
// volume plugin of kubelet, pkg/volume/csi/csi_plugin.go).
type VolData struct {
	DriverName   string `json:"driverName"`
	VolumeHandle string `json:"volumeHandle"`
}

// ParseVolData parses a vol_data.json.
func ParseVolData(raw []byte) (VolData, error) {
	var d VolData
	if err := json.Unmarshal(raw, &d); err != nil {
		return VolData{}, fmt.Errorf("vol_data.json: %w", err)
	}
	return d, nil
}

// volDataFiles caches what was read, by path, for as long as the file does not
// change.
type volDataFiles struct{ cache[string, volDataFile] }

func newVolDataFiles() volDataFiles { return volDataFiles{newCache[string, volDataFile]()} }

type volDataFile struct {
	stamp ops.FileStamp
	data  *VolData
}

// learn returns the content: of raw, or if that is nil as known before. It is nil
// for a torn file, which is evidence of nothing.
func (f volDataFiles) learn(file string, before volDataFile, raw []byte, stamp ops.FileStamp) *VolData {
	if raw == nil && stamp == before.stamp {
		return before.data
	}
	now := volDataFile{stamp: stamp}
	if d, err := ParseVolData(raw); err == nil {
		now.data = &d
	}
	if now.data == nil || stamp == (ops.FileStamp{}) {
		f.remove(file)
	} else {
		f.add(file, now)
	}
	return now.data
}
