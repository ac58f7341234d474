package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
)

// release is what is published of one version, in one directory: the image, its SBOMs, the
// programs of each platform, the chart, notes, and the checksums of all of these.
type release struct {
	config
	// to is the directory; what is in it is removed.
	to string
	// chart is the chart's directory, changelog the file whose section becomes the notes.
	chart, changelog string
}

// checksums names the file that `sha256sum --check` reads.
const checksums = "SHA256SUMS"

// releaseVersion is a version with a tag; Helm takes it without the v.
var releaseVersion = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// write writes everything. The image comes first: the notes have its digest.
func (r release) write() error {
	if !releaseVersion.MatchString(r.version) {
		return fmt.Errorf("%q is no version of a release, as v0.1.0 is", r.version)
	}
	notes, err := r.notes()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(r.to); err != nil {
		return err
	}
	if err := os.MkdirAll(r.to, 0o755); err != nil {
		return err
	}
	r.out = r.to
	digest, err := r.config.write()
	if err != nil {
		return err
	}
	if err := r.rename(archive, "node-healer-"+r.version+".oci.tar"); err != nil {
		return err
	}
	for name := range strings.SplitSeq(r.platforms, ",") {
		platform, err := v1.ParsePlatform(name)
		if err != nil {
			return err
		}
		named := fmt.Sprintf("node-healer-%s-%s-%s", r.version, platform.OS, platform.Architecture)
		if err := r.rename(fmt.Sprintf(sbomName, platform.OS, platform.Architecture), named+".cdx.json"); err != nil {
			return err
		}
		files, err := r.programFiles(platform)
		if err != nil {
			return err
		}
		if err := r.tarball(named+".tar.gz", named, files); err != nil {
			return err
		}
	}
	files, err := r.chartFiles()
	if err != nil {
		return err
	}
	if err := r.tarball("node-healer-"+strings.TrimPrefix(r.version, "v")+".tgz", "node-healer", files); err != nil {
		return err
	}
	notes += fmt.Sprintf("\nImage: `%s@%s`\n", r.name, digest)
	if err := os.WriteFile(filepath.Join(r.to, "NOTES.md"), []byte(notes), 0o644); err != nil {
		return err
	}
	return r.sum()
}

func (r release) rename(from, to string) error {
	return os.Rename(filepath.Join(r.to, from), filepath.Join(r.to, to))
}

// notes returns the section of the version; a version with a suffix, as v0.1.0-rc.1, may
// have what is not released yet.
func (r release) notes() (string, error) {
	text, err := os.ReadFile(r.changelog)
	if err != nil {
		return "", err
	}
	number, suffix, _ := strings.Cut(strings.TrimPrefix(r.version, "v"), "-")
	wanted := []string{strings.TrimPrefix(r.version, "v")}
	if suffix != "" {
		wanted = append(wanted, number, "Unreleased")
	}
	for _, title := range wanted {
		_, section, found := strings.Cut(string(text), "\n## ["+title+"]")
		if !found {
			continue
		}
		_, section, _ = strings.Cut(section, "\n") // the date
		section, _, _ = strings.Cut(section, "\n## [")
		if section = strings.TrimSpace(section); section != "" {
			return "# node-healer " + r.version + "\n\n" + section + "\n", nil
		}
	}
	return "", fmt.Errorf("%s has no section with a text for %s", r.changelog, r.version)
}

func (r release) programFiles(platform *v1.Platform) ([]file, error) {
	text, err := os.ReadFile(r.licence)
	if err != nil {
		return nil, err
	}
	files := []file{{"LICENSE", 0o644, text}}
	for _, name := range programs {
		program, err := os.ReadFile(filepath.Join(r.dir(platform), name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, 0o755, program})
	}
	return files, nil
}

// chartVersions are the two lines of Chart.yaml that name the version.
var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// chartFiles returns what `helm package` takes: links are followed, and what .helmignore
// names is left out.
func (r release) chartFiles() (files []file, err error) {
	raw, err := os.ReadFile(filepath.Join(r.chart, ".helmignore"))
	if err != nil {
		return nil, err
	}
	ignored := append(strings.Fields(string(raw)), ".helmignore")
	var walk func(dir string) error
	walk = func(dir string) error {
		entries, err := os.ReadDir(filepath.Join(r.chart, dir))
		if err != nil {
			return err
		}
		for _, entry := range entries {
			name := path.Join(dir, entry.Name())
			if leftOut(ignored, entry.Name()) {
				continue
			}
			info, err := os.Stat(filepath.Join(r.chart, name)) // of what a link names
			if err != nil {
				return err
			}
			if info.IsDir() {
				if err := walk(name); err != nil {
					return err
				}
				continue
			}
			text, err := os.ReadFile(filepath.Join(r.chart, name))
			if err != nil {
				return err
			}
			if name == "Chart.yaml" {
				text = chartVersions.ReplaceAllFunc(text, func(line []byte) []byte {
					if bytes.HasPrefix(line, []byte("version:")) {
						return []byte("version: " + strings.TrimPrefix(r.version, "v"))
					}
					return []byte("appVersion: " + r.version)
				})
			}
			files = append(files, file{name, 0o644, text})
		}
		return nil
	}
	return files, walk("")
}

func leftOut(patterns []string, name string) bool {
	for _, pattern := range patterns {
		if match, _ := path.Match(pattern, name); match {
			return true
		}
	}
	return false
}

// tarball writes files beneath one directory, with the times of the commit.
func (r release) tarball(name, dir string, files []file) error {
	var all bytes.Buffer
	compressed := gzip.NewWriter(&all)
	w := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(dir, f.name), Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(r.created, 0)}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.to, name), all.Bytes(), 0o644)
}

// sum writes the checksums of all that is there.
func (r release) sum() error {
	entries, err := os.ReadDir(r.to)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(r.to, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), entry.Name())
	}
	return os.WriteFile(filepath.Join(r.to, checksums), []byte(lines.String()), 0o644)
}
