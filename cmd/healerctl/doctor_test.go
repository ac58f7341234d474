package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/why"
)

// TestMain: the program is its own worker.
func TestMain(m *testing.M) {
	why.Worker(lookAtKubelet, lookAtState)
	os.Exit(m.Run())
}

// The page with what kernels lack is read as it is written.
func TestKernel(t *testing.T) {
	for release, want := range map[string]struct{ state, says, not string }{
		"6.18.44-fc":           {fit, "Linux 6.18.44-fc", "Below"},
		"7.0.0":                {fit, "", "Below"},
		"6.12.1":               {less, "Below 6.16 nobody can tell which daemon", "Below 6.8"},
		"6.1.0-13-amd64":       {less, "Below 6.5 a dead FUSE mount", "Below 6.0 "},
		"5.14.0-427.el9":       {less, "Below 6.0 an ext4", "needed"},
		"5.4.0":                {missing, "5.14 is needed", "Below"},
		"4.18.0-553.el8":       {missing, "5.14 is needed", "Below"},
		"a vendor's own words": {missing, "cannot be told", "Below"},
	} {
		got := kernel(release)
		if got.State != want.state || !strings.Contains(got.Text, want.says) || strings.Contains(got.Text, want.not) || strings.Contains(got.Text, "`") {
			t.Errorf("%s: %+v", release, got)
		}
	}
}

func TestStateDir(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir:              dir + " is writable",
		dir + "/not/yet": dir + " is writable",
		file:             "is no directory",
		file + "/below":  "not a directory",
	} {
		got := stateDir(path)
		if !strings.Contains(got.Text, want) || (got.State == fit) != strings.HasSuffix(want, "writable") {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

// doctor needs no server, and asks the one that there is.
func TestDoctorAndTheServer(t *testing.T) {
	_, stdout, _ := (&fakeAdmin{}).serve(t)("doctor", "--kubelet-root="+t.TempDir())
	if !strings.Contains(stdout, "ok        server        node-healer answers, version v1\n") {
		t.Error(stdout)
	}
	var out, errors bytes.Buffer
	code := run(t.Context(), []string{"healerctl", "doctor", "--kubelet-root=/none", "--endpoint=unix:///none"}, &out, &errors)
	if code != exitAbnormal || !strings.Contains(out.String(), "less      server    there is no /none: ") || !strings.Contains(out.String(), "missing   kubelet   ") || errors.Len() > 0 {
		t.Errorf("exit code %d: %s%s", code, &out, &errors)
	}
	if code := run(t.Context(), []string{"healerctl", "doctor", "--endpoint=/none"}, &out, &errors); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
}
