package host

import (
	"encoding/json"
	"fmt"
)

// VolData is the part of kubelet's vol_data.json that names a volume (CSI
// volume plugin of kubelet, pkg/volume/csi/csi_plugin.go).
type VolData struct {
	DriverName   string `json:"driverName"`
	VolumeHandle string `json:"volumeHandle"`
	SpecVolID    string `json:"specVolID"`
}

// ParseVolData reads a vol_data.json.
func ParseVolData(raw []byte) (VolData, error) {
	var d VolData
	if err := json.Unmarshal(raw, &d); err != nil {
		return VolData{}, fmt.Errorf("vol_data.json: %w", err)
	}
	return d, nil
}
