package harness

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// BuildVendor builds a program of the vendor's own module, test/vendor, and returns its path,
// beside node-healer's worker.
func BuildVendor(t testing.TB, name string, flags ...string) string {
	t.Helper()
	NeedsHost(t, "Go")
	binary, err := buildOnce("vendor-"+name, func(to string) error {
		if len(flags) == 0 {
			flags = withFaults
		}
		cmd := exec.Command("go", append(append([]string{"build", "-buildvcs=false", "-o", to}, flags...), "./"+name)...)
		cmd.Dir, cmd.Env = "../vendor", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
		return nil
	})
	Must(t, err)
	return binary
}

// Hello is what the vendor's driver says of its volumes, and the program with which it mends
// them.
type Hello struct {
	t   testing.TB
	dir string
}

// NewHello has the servers of this test that have the vendor's provider read what it says.
func NewHello(t *testing.T) Hello {
	t.Helper()
	h := Hello{t, t.TempDir()}
	t.Setenv("HELLO_DIR", h.dir)
	Must(t, os.WriteFile(filepath.Join(h.dir, "hello-again"), []byte(helloAgain), 0o700))
	return h
}

// helloAgain mends a volume, and keeps all that it was given: arguments, environment, standard
// input and what its descriptors are.
const helloAgain = `#!/bin/sh
dir=$(dirname "$0")
{ cat /proc/$$/cmdline /proc/$$/environ && cat && ls -l /proc/$$/fd; } >"$dir/$1.given"
echo ok >"$dir/$1.health"
`

// Given returns what the program was given when it last mended a volume.
func (h Hello) Given(volume string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, url.PathEscape(volume)+".given"))
	Must(h.t, err)
	return string(text)
}

// Says writes what the driver says of a volume.
func (h Hello) Says(volume, text string) {
	h.t.Helper()
	Must(h.t, os.WriteFile(filepath.Join(h.dir, url.PathEscape(volume)+".health"), []byte(text+"\n"), 0o600))
}
