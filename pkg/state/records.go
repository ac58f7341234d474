package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const recordsDir = "records"

// recordLimit bounds a record file in bytes: a volume with a thousand mount points
// has less.
const recordLimit = 1 << 20

// Records keeps one JSON file for each volume, named by hash: a volume_id may
// hold any byte and is never part of a path.
type Records struct {
	dir   string
	cache cache
}

// Records gives the directory's records.
func (d *Dir) Records() *Records { return &Records{dir: filepath.Join(d.path, recordsDir)} }

func (r *Records) path(driver, volumeID string) string {
	sum := sha256.Sum256([]byte(driver + "\x00" + volumeID))
	return filepath.Join(r.dir, hex.EncodeToString(sum[:])+".json")
}

// Load implements healer.Records. A torn or foreign file counts as none: it is
// written anew at the next healthy check.
func (r *Records) Load(driver, volumeID string) (*healer.Record, error) {
	key := driver + "\x00" + volumeID
	if record := r.cache.get(key); record != nil {
		return record, nil
	}
	path := r.path(driver, volumeID)
	file, statErr := os.Stat(path) // before it is read: a change in between is not missed
	raw, err := readLimited(path, recordLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no record; documented in the interface
	}
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	record, err := decodeRecord(raw)
	if err == nil && (record.Driver != driver || record.VolumeID != volumeID) {
		err = errors.New("it belongs to another volume")
	}
	if err != nil {
		klog.Background().Error(err, "Ignoring an unusable record", "file", path)
		return nil, nil //nolint:nilnil // as good as none
	}
	if statErr == nil {
		r.cache.put(key, cached{path, file, record})
	}
	return record, nil
}

func decodeRecord(raw []byte) (*healer.Record, error) {
	var version struct{ Version int }
	if err := json.Unmarshal(raw, &version); err != nil {
		return nil, err
	}
	if version.Version != healer.RecordVersion {
		return nil, fmt.Errorf("it has version %d, this build reads %d", version.Version, healer.RecordVersion)
	}
	var record healer.Record
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&record); err != nil {
		return nil, err
	}
	return &record, nil
}

// Save implements healer.Records.
func (r *Records) Save(record healer.Record) error {
	raw, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := writeFile(r.path(record.Driver, record.VolumeID), append(raw, '\n')); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	err = errors.Join(err, f.Close())
	if err == nil && int64(len(raw)) > limit {
		err = fmt.Errorf("it is larger than %d bytes", limit)
	}
	return raw, err
}
