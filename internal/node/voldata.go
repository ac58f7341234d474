package node

import (
	"encoding/json"
	"fmt"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// parseVolData parses a vol_data.json.
func parseVolData(raw []byte) (facts.VolData, error) {
	var d facts.VolData
	if err := json.Unmarshal(raw, &d); err != nil {
		return facts.VolData{}, fmt.Errorf("vol_data.json: %w", err)
	}
	return d, nil
}

// volDataFiles caches what was read, by path, for as long as the file does not
// change.
type volDataFiles struct{ cache[string, volDataFile] }

func newVolDataFiles() volDataFiles { return volDataFiles{newCache[string, volDataFile]()} }

type volDataFile struct {
	stamp ops.FileStamp
	data  *facts.VolData
}

// apply returns the content: of raw, or if that is nil as known before. It is nil
// for a torn file, which is evidence of nothing.
func (f volDataFiles) apply(file string, before volDataFile, raw []byte, stamp ops.FileStamp) *facts.VolData {
	if raw == nil && stamp == before.stamp {
		return before.data
	}
	now := volDataFile{stamp: stamp}
	if d, err := parseVolData(raw); err == nil {
		now.data = &d
	}
	if now.data == nil || stamp == (ops.FileStamp{}) {
		f.remove(file)
	} else {
		f.add(file, now)
	}
	return now.data
}
