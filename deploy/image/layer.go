package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"encoding/pem"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Where things are in the image, as in the Dockerfile.
const (
	programDir   = "usr/local/bin/"
	certificates = "etc/ssl/certs/ca-certificates.crt"
	licence      = "licenses/LICENSE"
)

// programs are all that `make build` makes.
var programs = []string{"healerctl", "node-healer", "node-healer-controller", "node-healer-gateway", "node-healer-worker"}

type file struct {
	name    string
	mode    int64
	content []byte
}

// dir has the programs of a platform.
func (c config) dir(platform *v1.Platform) string {
	return filepath.Join(c.programs, platform.OS, platform.Architecture)
}

func (c config) files(platform *v1.Platform) ([]file, error) {
	text, err := os.ReadFile(c.licence)
	if err != nil {
		return nil, err
	}
	files := []file{{licence, 0o644, text}, {certificates, 0o644, authorities()}}
	for _, name := range programs {
		program, err := os.ReadFile(filepath.Join(c.dir(platform), name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{programDir + name, 0o755, program})
	}
	return files, nil
}

// authorities returns the certificates that Mozilla trusts without reservation.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // trusted for some certificates only, which a file cannot say
		}
		_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // to memory
	}
	return all.Bytes()
}

// newLayer is files of root, in an order and with times that are always the same.
func newLayer(files []file, modified time.Time) (v1.Layer, error) {
	for _, f := range files {
		for dir := path.Dir(f.name); dir != "."; dir = path.Dir(dir) {
			files = append(files, file{name: dir + "/", mode: 0o755})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	files = slices.CompactFunc(files, func(a, b file) bool { return a.name == b.name })
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for _, f := range files {
		kind := byte(tar.TypeReg)
		if strings.HasSuffix(f.name, "/") {
			kind = tar.TypeDir
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: kind, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: modified, Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	// Compressed once: its digest and its size are asked for before its bytes.
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(all.Bytes())), nil },
		tarball.WithCompressedCaching)
}
