package main

import (
	"archive/tar"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

var emptyIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)

// writeArchive writes an index as an archive with the OCI image layout, and returns its
// digest. `ctr images import`, `skopeo` and `crane` take the name from it.
func writeArchive(out, image string, index v1.ImageIndex) (digest string, err error) {
	tag, err := name.NewTag(image, name.StrictValidation)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(out), ".layout-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// The layout's own index has one entry: the index of the platforms.
	written, err := layout.Write(dir, emptyIndex)
	if err != nil {
		return "", err
	}
	if err := written.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          image,
		"org.opencontainers.image.ref.name": tag.TagStr(),
	})); err != nil {
		return "", err
	}
	hash, err := index.Digest()
	if err != nil {
		return "", err
	}
	return hash.String(), pack(out, dir)
}

// pack writes a directory as a tar, in the order of names and without times or owners.
func pack(out, dir string) (err error) {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
