package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/v1"
)

// built is where `make image` has written to.
const built = "../../bin/image"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testConfig(t *testing.T, out string) config {
	t.Helper()
	if _, err := os.Stat(built); err != nil {
		t.Fatal("make image comes first: ", err)
	}
	return config{out: out, name: "example.com/node-healer:v1", version: "v1", programs: built, licence: "../../LICENSE", platforms: "linux/amd64,linux/arm64", created: 1_700_000_000}
}

// once is what the tests that only read share: to write everything takes seconds.
var once struct {
	sync.Once
	c   config
	err error
}

// TestMain removes what was written once.
func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(once.c.out)
	os.Exit(code)
}

// writtenOnce writes everything, and returns of what and where.
func writtenOnce(t *testing.T) config {
	t.Helper()
	once.Do(func() {
		once.c = testConfig(t, "")
		if once.c.out, once.err = os.MkdirTemp("", "node-healer-image-"); once.err == nil {
			_, once.err = once.c.write()
		}
	})
	must(t, once.err)
	return once.c
}

// TestSameBytes writes everything twice.
func TestSameBytes(t *testing.T) {
	first, second := writtenOnce(t).out, t.TempDir()
	_, err := testConfig(t, second).write()
	must(t, err)
	names, err := filepath.Glob(first + "/*")
	must(t, err)
	if len(names) != 3 {
		t.Errorf("there are %q", names)
	}
	for _, name := range names {
		a, err := os.ReadFile(name)
		must(t, err)
		b, err := os.ReadFile(filepath.Join(second, filepath.Base(name)))
		must(t, err)
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs", filepath.Base(name))
		}
	}
}

// TestSameProgram builds the programs again in another place, from what the Dockerfile
// copies, and compares one.
func TestSameProgram(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("../../Dockerfile")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "COPY" || strings.HasPrefix(words[1], "--") {
			continue
		}
		for _, name := range words[1 : len(words)-1] {
			must(t, exec.Command("cp", "-r", "../../"+name, dir).Run())
		}
	}
	before, err := os.ReadFile(filepath.Join(built, "linux", runtime.GOARCH, "healerctl"))
	must(t, err)
	info, err := exec.Command(filepath.Join(built, "linux", runtime.GOARCH, "healerctl"), "--version").Output()
	must(t, err)
	words := strings.Fields(string(info))
	again := exec.Command("make", "build", "VERSION="+words[len(words)-1])
	again.Dir = dir
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	after, err := os.ReadFile(dir + "/bin/healerctl")
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("the program differs")
	}
}

// TestDockerfile has the other way to make the image say the same of it.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	must(t, err)
	said := strings.ReplaceAll(string(text), "\\\n", " ")
	platform := &v1.Platform{OS: "linux", Architecture: "arm64"}
	c := testConfig(t, "")
	image, err := c.image(platform)
	must(t, err)
	is, err := image.ConfigFile()
	must(t, err)
	entry, err := json.Marshal(is.Config.Entrypoint)
	must(t, err)
	want := []string{"\nUSER " + is.Config.User + "\n", "\nENTRYPOINT " + string(entry) + "\n", " /" + programDir + "\n", " /" + certificates + "\n", " /" + licence + "\n"}
	for _, variable := range is.Config.Env {
		want = append(want, "\nENV "+variable+"\n")
	}
	for key, value := range is.Config.Labels {
		if key == "org.opencontainers.image.version" {
			value = "$VERSION"
		}
		want = append(want, key+`="`+value+`"`)
	}
	for _, name := range programs {
		want = append(want, " /src/bin/"+name+" ")
	}
	for _, w := range want {
		if !strings.Contains(said, w) {
			t.Errorf("the Dockerfile lacks %q", w)
		}
	}
	if n := strings.Count(said, "\nENV "); n != len(is.Config.Env) || !slices.Contains(filepath.SplitList(searchPath), filepath.Clean("/"+programDir)) {
		t.Errorf("the Dockerfile sets %d variables, the image %q", n, is.Config.Env)
	}
	if n := strings.Count(said, "org.opencontainers.image."); n != len(is.Config.Labels) || is.Architecture != "arm64" {
		t.Errorf("the Dockerfile has %d labels, the image %d, for %s", n, len(is.Config.Labels), is.Architecture)
	}
}

// TestLayer sees root's files with the times of the commit, and all certificates.
func TestLayer(t *testing.T) {
	image, err := testConfig(t, "").image(&v1.Platform{OS: "linux", Architecture: "amd64"})
	must(t, err)
	layers, err := image.Layers()
	must(t, err)
	content, err := layers[0].Uncompressed()
	must(t, err)
	var names []string
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		names = append(names, h.Name)
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 1_700_000_000 || h.Mode&0o022 != 0 {
			t.Errorf("%+v", h)
		}
		if h.Name == certificates {
			allParse(t, r)
		}
	}
	if !slices.Equal(names, []string{
		"etc/", "etc/ssl/", "etc/ssl/certs/", certificates, "licenses/", licence, "usr/", "usr/local/", programDir,
		programDir + "healerctl", programDir + "node-healer", programDir + "node-healer-controller", programDir + "node-healer-gateway", programDir + "node-healer-worker",
	}) {
		t.Errorf("%q", names)
	}
}

func allParse(t *testing.T, r io.Reader) {
	t.Helper()
	text, err := io.ReadAll(r)
	must(t, err)
	count := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Error(err)
		}
		count++
	}
	if count < 100 {
		t.Errorf("%d certificates", count)
	}
}

// TestSBOM compares with what the go command says of each program.
func TestSBOM(t *testing.T) {
	raw, err := os.ReadFile(built + "/node-healer-linux-arm64.cdx.json")
	must(t, err)
	var bom cyclonedx.BOM
	must(t, cyclonedx.NewBOMDecoder(bytes.NewReader(raw), cyclonedx.BOMFileFormatJSON).Decode(&bom))
	var refs []string
	for _, c := range *bom.Components {
		refs = append(refs, c.BOMRef)
	}
	for _, name := range programs {
		out, err := exec.Command("go", "version", "-m", filepath.Join(built, "linux/arm64", name)).Output()
		must(t, err)
		found := 0
		for line := range strings.Lines(string(out)) {
			if words := strings.Fields(line); len(words) > 2 && words[0] == "dep" {
				found++
				if !slices.Contains(refs, "pkg:golang/"+words[1]+"@"+words[2]) {
					t.Errorf("%s: %s %s is missing", name, words[1], words[2])
				}
			}
		}
		if found == 0 || !slices.ContainsFunc(refs, func(ref string) bool { return strings.HasPrefix(ref, "pkg:golang/"+product+"/cmd/"+name+"@") }) {
			t.Errorf("%s: has %d modules; %q", name, found, refs)
		}
	}
}
