package harness

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fill writes data that a test can recognise.
func (v *Volume) fill() {
	v.Node.T.Helper()
	t := v.Node.T
	if v.FS == "block" {
		f, err := os.OpenFile(v.Device, os.O_WRONLY, 0)
		Must(t, err)
		_, err = f.WriteString(strings.Repeat("block "+v.ID+"\n", 1000))
		Must(t, err)
		Must(t, f.Sync())
		Must(t, f.Close())
		return
	}
	v.fillAt(v.Staging)
	// Not sync(2), which also waits for what other tests made sick.
	root, err := os.Open(v.Staging)
	Must(t, err)
	defer root.Close()
	Must(t, unix.Syncfs(int(root.Fd())))
}

// fillAt writes the files of a volume to a directory.
func (v *Volume) fillAt(dir string) {
	v.Node.T.Helper()
	t := v.Node.T
	Mkdir(t, filepath.Join(dir, "sub", "deep"))
	for name, text := range map[string]string{"a": "first", "sub/b": "second", "sub/deep/c": strings.Repeat("third ", 5000)} {
		Must(t, os.WriteFile(filepath.Join(dir, name), []byte(v.ID+" "+text), 0o640))
	}
}

// Sum returns a checksum of everything in the volume as seen at a path: names,
// types, modes, sizes and content.
func (v *Volume) Sum(path string) string {
	v.Node.T.Helper()
	t := v.Node.T
	if v.FS == "block" {
		return fileSum(t, path)
	}
	h := sha256.New()
	Must(t, filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(path, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		h.Write([]byte(rel + " " + info.Mode().String() + "\n"))
		if info.Mode().IsRegular() {
			h.Write([]byte(fileSum(t, p)))
		}
		return nil
	}))
	return hex.EncodeToString(h.Sum(nil))
}

func fileSum(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	Must(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	Must(t, err)
	return hex.EncodeToString(h.Sum(nil))
}

// Writable shows that a mount point takes writes, and puts things back.
func (v *Volume) Writable(mountPoint string) {
	v.Node.T.Helper()
	if v.FS == "block" {
		f, err := os.OpenFile(mountPoint, os.O_WRONLY, 0)
		Must(v.Node.T, err)
		Must(v.Node.T, f.Close())
		return
	}
	written := filepath.Join(mountPoint, "written")
	Must(v.Node.T, os.WriteFile(written, []byte("x"), 0o600))
	Must(v.Node.T, os.Remove(written))
}

// Keep binds what is staged at a path outside kubelet's, so that the data can be
// read whatever becomes of the mount points.
func (v *Volume) Keep() string {
	v.Node.T.Helper()
	if v.FS == "block" {
		return v.Device
	}
	keeper := filepath.Join(v.Node.Dir, "keeper")
	Mkdir(v.Node.T, keeper)
	Must(v.Node.T, unix.Mount(v.Staging, keeper, "", unix.MS_BIND, ""))
	Must(v.Node.T, unix.Mount("", keeper, "", unix.MS_PRIVATE, ""))
	return keeper
}
