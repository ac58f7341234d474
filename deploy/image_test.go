// Package deploy holds no code: its test reads what the image is built from.
package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root of the repository, which is what the builder gets.
const root = ".."

// lines returns a file's lines without comments, continued ones joined, as words.
func lines(t *testing.T, file string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	var found [][]string
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			found = append(found, words)
		}
	}
	return found
}

// copied returns what the image takes out of the repository.
func copied(t *testing.T) []string {
	t.Helper()
	var sources []string
	for _, words := range lines(t, "Dockerfile") {
		if words[0] != "COPY" || strings.HasPrefix(words[1], "--from=") {
			continue
		}
		sources = append(sources, words[1:len(words)-1]...)
	}
	if len(sources) == 0 {
		t.Fatal("the Dockerfile copies nothing")
	}
	return sources
}

// TestEverySourceReachesTheBuilder compares with .dockerignore, which leaves out
// everything but what is copied.
func TestEverySourceReachesTheBuilder(t *testing.T) {
	ignored := lines(t, ".dockerignore")
	if len(ignored) == 0 || ignored[0][0] != "*" {
		t.Fatal(".dockerignore does not begin with *")
	}
	var admitted []string
	for _, words := range ignored[1:] {
		name, in := strings.CutPrefix(words[0], "!")
		if !in {
			t.Errorf("%q: a later line that leaves out again is more than this test understands", words[0])
		}
		admitted = append(admitted, name)
	}
	sources := copied(t)
	for _, source := range sources {
		if _, err := os.Stat(filepath.Join(root, source)); err != nil {
			t.Errorf("COPY %s: %v", source, err)
		}
		if !slices.Contains(admitted, source) {
			t.Errorf("COPY %s: .dockerignore leaves it out", source)
		}
	}
	for _, name := range admitted {
		if !slices.Contains(sources, name) {
			t.Errorf(".dockerignore lets in %s, which nothing copies", name)
		}
	}
}

// TestImageHasCertificates wants those of the authorities, where Go and OpenSSL look.
func TestImageHasCertificates(t *testing.T) {
	const certificates = "/etc/ssl/certs/ca-certificates.crt"
	for _, words := range lines(t, "Dockerfile") {
		if slices.Equal(words, []string{"COPY", "--from=build", certificates, certificates}) {
			return
		}
	}
	t.Errorf("the Dockerfile does not copy %s", certificates)
}

// TestBasesArePinned wants a tag that says which version it is.
func TestBasesArePinned(t *testing.T) {
	for _, words := range lines(t, "Dockerfile") {
		if words[0] != "FROM" {
			continue
		}
		base := words[1]
		if strings.HasPrefix(base, "--") {
			base = words[2]
		}
		if base == "scratch" {
			continue
		}
		_, tag, tagged := strings.Cut(base[strings.LastIndexByte(base, '/')+1:], ":")
		if !tagged || !strings.ContainsAny(tag, "0123456789") {
			t.Errorf("FROM %s has no version", base)
		}
	}
}

// TestImageHasEveryProgram wants the programs that the manifests start.
func TestImageHasEveryProgram(t *testing.T) {
	var programs []string
	for _, words := range lines(t, "Dockerfile") {
		if words[0] == "COPY" && words[1] == "--from=build" {
			programs = append(programs, words[2:len(words)-1]...)
		}
	}
	manifests, err := filepath.Glob("*/*.yaml")
	if err != nil || len(manifests) == 0 {
		t.Fatal("no manifests", err)
	}
	for _, manifest := range manifests {
		for _, words := range lines(t, filepath.Join("deploy", manifest)) {
			for _, word := range words {
				name, is := strings.CutPrefix(strings.Trim(word, `"[],`), "/usr/local/bin/")
				if is && !slices.Contains(programs, "/src/bin/"+name) {
					t.Errorf("%s starts %s, which the image lacks", manifest, name)
				}
			}
		}
	}
}
