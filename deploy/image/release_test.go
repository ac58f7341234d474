package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const changes = `# Changelog

## [Unreleased]

- what comes next

## [1.2.3] - 2026-01-02

### Added

- what was released

## [1.2.2] - 2026-01-01

- what was before
`

func testRelease(t *testing.T, version string) release {
	t.Helper()
	changelog := filepath.Join(t.TempDir(), "CHANGELOG.md")
	must(t, os.WriteFile(changelog, []byte(changes), 0o600))
	r := release{config: testConfig(t, ""), to: filepath.Join(t.TempDir(), "release"), chart: "../chart", changelog: changelog}
	r.version = version
	// The smallest program in place of each: to compress all takes half a minute.
	r.programs = t.TempDir()
	for _, platform := range []string{"linux/amd64", "linux/arm64"} {
		must(t, os.MkdirAll(filepath.Join(r.programs, platform), 0o700))
		worker, err := filepath.Abs(filepath.Join(built, platform, "node-healer-worker"))
		must(t, err)
		for _, name := range programs {
			must(t, os.Symlink(worker, filepath.Join(r.programs, platform, name)))
		}
	}
	return r
}

// TestRelease writes a release twice: the same bytes, and all that it has to have.
func TestRelease(t *testing.T) {
	first, second := testRelease(t, "v1.2.3"), testRelease(t, "v1.2.3")
	must(t, first.write())
	must(t, second.write())
	want := []string{
		"NOTES.md", checksums, "node-healer-1.2.3.tgz",
		"node-healer-v1.2.3-linux-amd64.cdx.json", "node-healer-v1.2.3-linux-amd64.tar.gz",
		"node-healer-v1.2.3-linux-arm64.cdx.json", "node-healer-v1.2.3-linux-arm64.tar.gz",
		"node-healer-v1.2.3.oci.tar",
	}
	var have []string
	sums := map[string]string{}
	for line := range strings.Lines(text(t, first, checksums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	entries, err := os.ReadDir(first.to)
	must(t, err)
	for _, entry := range entries {
		name := entry.Name()
		have = append(have, name)
		content := text(t, first, name)
		if content != text(t, second, name) {
			t.Errorf("%s differs", name)
		}
		if sum := sha256.Sum256([]byte(content)); name != checksums && sums[name] != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: the checksum is %q", name, sums[name])
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("there are %q, not %q", have, want)
	}
	notes := text(t, first, "NOTES.md")
	if !strings.Contains(notes, "- what was released\n") || strings.Contains(notes, "what comes next") || strings.Contains(notes, "what was before") ||
		!strings.Contains(notes, first.name+"@sha256:") {
		t.Errorf("the notes are\n%s", notes)
	}
	releasedPrograms(t, first)
	releasedChart(t, first)
}

// releasedPrograms wants all programs of the platform, as they were built.
func releasedPrograms(t *testing.T, r release) {
	t.Helper()
	files := unpack(t, r, "node-healer-v1.2.3-linux-arm64.tar.gz")
	for _, name := range programs {
		program, err := os.ReadFile(filepath.Join(r.programs, "linux/arm64", name))
		must(t, err)
		if files["node-healer-v1.2.3-linux-arm64/"+name] != string(program) {
			t.Errorf("%s is not what was built", name)
		}
	}
	if len(files) != len(programs)+1 || files["node-healer-v1.2.3-linux-arm64/LICENSE"] == "" {
		t.Errorf("there are %d files", len(files))
	}
}

// releasedChart wants the version of the release, and the manifests as files.
func releasedChart(t *testing.T, r release) {
	t.Helper()
	files := unpack(t, r, "node-healer-1.2.3.tgz")
	if chart := files["node-healer/Chart.yaml"]; !strings.Contains(chart, "\nversion: 1.2.3\n") || !strings.Contains(chart, "\nappVersion: v1.2.3\n") {
		t.Errorf("Chart.yaml is\n%s", chart)
	}
	for _, name := range []string{"values.yaml", "values.schema.json", "templates/server.yaml", "daemonset/daemonset.yaml", "gateway/rbac.yaml", "controller/rbac.yaml", "monitoring/dashboard.json"} {
		if files["node-healer/"+name] == "" && files["node-healer/files/"+name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	for name := range files {
		if strings.HasSuffix(name, ".go") {
			t.Errorf("%s is no part of a chart", name)
		}
	}
}

// TestReleaseIsRefused where nobody could say what it is.
func TestReleaseIsRefused(t *testing.T) {
	for _, version := range []string{"", "1.2.3", "v1.2", "4f2a91c-dirty", "v9.9.9"} {
		if err := testRelease(t, version).write(); err == nil {
			t.Errorf("%q is released", version)
		}
	}
	if notes, err := testRelease(t, "v1.3.0-rc.1").notes(); err != nil || !strings.Contains(notes, "what comes next") {
		t.Errorf("a candidate has the notes %q, %v", notes, err)
	}
}

func text(t *testing.T, r release, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(r.to, name))
	must(t, err)
	return string(raw)
}

// unpack returns the files of a tarball.
func unpack(t *testing.T, r release, name string) map[string]string {
	t.Helper()
	f, err := os.Open(filepath.Join(r.to, name))
	must(t, err)
	defer f.Close()
	uncompressed, err := gzip.NewReader(f)
	must(t, err)
	files := map[string]string{}
	for in := tar.NewReader(uncompressed); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, err)
		content, err := io.ReadAll(in)
		must(t, err)
		files[header.Name] = string(content)
	}
}
