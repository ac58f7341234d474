// Package state keeps the server's own files in its state directory: a record
// for each volume, the audit log, and the lock that keeps a second server out.
//
// It holds no secret, and no answer needs it: without it less is healed, and checks
// have nothing to compare with, until each volume is recorded anew.
package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
)

// Dir is an open state directory. Only one server at a time has it.
type Dir struct {
	path string
	lock *os.File
}

// Open creates the directory if need be and locks it.
func Open(path string) (*Dir, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("state directory %q is not an absolute path", path)
	}
	for _, dir := range []string{path, filepath.Join(path, recordsDir)} {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
		if err := os.Chmod(dir, dirMode); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	lock, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	return &Dir{path: path, lock: lock}, nil
}

// Close releases the lock.
func (d *Dir) Close() error { return d.lock.Close() }

// writeFile replaces a file by one that is complete and synced, or leaves the old one. Where
// there is none yet, nothing is synced: all that a power cut can leave is a torn file, which
// Load takes for none, or none. So a thousand new volumes do not wait for the disk one by one.
func writeFile(path string, data []byte) (err error) {
	_, missing := os.Lstat(path)
	first := errors.Is(missing, fs.ErrNotExist)
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && !first {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if first {
		return nil
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
