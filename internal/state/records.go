package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const recordsDir = "records"

// recordLimit bounds a record file in bytes: a volume with a thousand mount points
// has less.
const recordLimit = 1 << 20

var errTooLarge = fmt.Errorf("it is larger than %d bytes", recordLimit)

// Records keeps one JSON file for each volume, named by hash: a volume_id may
// hold any byte and is never part of a path.
type Records struct{ dir string }

// Records returns the directory's records.
func (d *Dir) Records() *Records { return &Records{dir: filepath.Join(d.path, recordsDir)} }

func (r *Records) path(driver, volumeID string) string {
	sum := sha256.Sum256([]byte(driver + "\x00" + volumeID))
	return filepath.Join(r.dir, hex.EncodeToString(sum[:])+".json")
}

// Load implements healer.Records. A torn or foreign file counts as none: the next
// healthy check writes it anew.
func (r *Records) Load(driver, volumeID string) (*healer.Record, error) {
	path := r.path(driver, volumeID)
	file, err := os.Stat(path)
	var raw []byte
	switch {
	case err == nil && file.Size() <= recordLimit:
		raw, err = os.ReadFile(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no record; documented in the interface
	}
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	// A field that this build does not know adds to the others and changes none of them: else
	// the version would be another one.
	var record healer.Record
	err = json.Unmarshal(raw, &record)
	switch {
	case raw == nil:
		err = errTooLarge
	case err != nil:
	case record.Version != healer.RecordVersion:
		err = fmt.Errorf("it has version %d, this build reads %d", record.Version, healer.RecordVersion)
	case record.Driver != driver || record.VolumeID != volumeID:
		err = errors.New("it belongs to another volume")
	}
	if err != nil {
		klog.Background().Error(err, "Ignoring an unusable record", "file", path)
		return nil, nil //nolint:nilnil // as good as none
	}
	record.Identity = record.Identity.OfDisk() // earlier builds recorded more
	return &record, nil
}

// Save implements healer.Records.
func (r *Records) Save(record healer.Record) error {
	raw, err := json.MarshalIndent(record, "", "  ")
	if err == nil && len(raw) >= recordLimit {
		err = errTooLarge // Load would refuse it
	}
	if err == nil {
		err = writeFile(r.path(record.Driver, record.VolumeID), append(raw, '\n'))
	}
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// recordLifetime is how long a record is kept that no check renewed; a volume in use
// renews it every hour in which it is checked.
const recordLifetime = 90 * 24 * time.Hour

// pruneEvery is how often records are pruned, and how old a file is that a crash left incomplete: a
// younger one may be about to be renamed.
const pruneEvery = 24 * time.Hour

// Prune removes the records of volumes that were not seen for recordLifetime, and files
// that a crash left incomplete, until ctx ends. Without it a node would keep a record of every
// volume it ever had: servers run for months.
func (r *Records) Prune(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.prune(time.Now()); err != nil {
			klog.Background().Error(err, "Cannot remove old records")
		}
		select {
		case <-ctx.Done():
		case <-time.After(pruneEvery):
		}
	}
}

func (r *Records) prune(now time.Time) error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		age := now.Sub(info.ModTime())
		if info.Mode().IsRegular() && (age > recordLifetime || age > pruneEvery && filepath.Ext(e.Name()) == ".new") {
			errs = append(errs, os.Remove(filepath.Join(r.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
