package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// recordLifetime is how long a record is kept that no check renewed; a volume in use
// renews it every hour in which it is checked.
const recordLifetime = 90 * 24 * time.Hour

// Prune removes the records of volumes that were not seen for recordLifetime, and files
// that a crash left incomplete. Without it a node would keep a record of every volume it
// ever had.
func (r *Records) Prune(now time.Time) error {
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
		old := now.Sub(info.ModTime()) > recordLifetime
		if info.Mode().IsRegular() && (old || filepath.Ext(e.Name()) == ".new") {
			errs = append(errs, os.Remove(filepath.Join(r.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
