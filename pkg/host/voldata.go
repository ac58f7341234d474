package host

import (
	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// volDataFiles caches what was read, by path, for as long as the file does not
// change.
type volDataFiles struct{ cache[string, volDataFile] }

func newVolDataFiles() volDataFiles { return volDataFiles{newCache[string, volDataFile]()} }

type volDataFile struct {
	stamp ops.FileStamp
	data  *layout.VolData
}

// apply returns the content: of raw, or if that is nil as known before. It is nil
// for a torn file, which is evidence of nothing.
func (f volDataFiles) apply(file string, before volDataFile, raw []byte, stamp ops.FileStamp) *layout.VolData {
	if raw == nil && stamp == before.stamp {
		return before.data
	}
	now := volDataFile{stamp: stamp}
	if d, err := layout.ParseVolData(raw); err == nil {
		now.data = &d
	}
	if now.data == nil || stamp == (ops.FileStamp{}) {
		f.remove(file)
	} else {
		f.add(file, now)
	}
	return now.data
}
