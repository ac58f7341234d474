package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// image is what a container is made of: static programs on an empty system.
type image struct {
	name string
	// programs are the paths in the image, with the files that they are here.
	programs map[string]string
	// command is what runs unless the pod says otherwise.
	command []string
}

// archive writes the image as `docker save` does, and returns the file's path.
func (i image) archive(t testing.TB) string {
	t.Helper()
	layer := i.layer(t)
	sum := fmt.Sprintf("%x", sha256.Sum256(layer))
	config := encode(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": i.command, "User": "0:0"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum}},
	})
	manifest := encode(t, []map[string]any{{
		"Config": "config.json", "RepoTags": []string{i.name}, "Layers": []string{"layer.tar"},
	}})
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for _, f := range []struct {
		name    string
		content []byte
	}{{"manifest.json", manifest}, {"config.json", config}, {"layer.tar", layer}} {
		add(t, w, f.name, 0o644, f.content)
	}
	harness.Must(t, w.Close())
	path := filepath.Join(t.TempDir(), "image.tar")
	harness.Must(t, os.WriteFile(path, all.Bytes(), 0o600))
	return path
}

func (i image) layer(t testing.TB) []byte {
	t.Helper()
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for inImage, here := range i.programs {
		content, err := os.ReadFile(here)
		harness.Must(t, err)
		add(t, w, inImage, 0o755, content)
	}
	harness.Must(t, w.Close())
	return all.Bytes()
}

func add(t testing.TB, w *tar.Writer, name string, mode int64, content []byte) {
	t.Helper()
	harness.Must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}))
	_, err := w.Write(content)
	harness.Must(t, err)
}

func encode(t testing.TB, value any) []byte {
	t.Helper()
	raw, err := json.Marshal(value)
	harness.Must(t, err)
	return raw
}
