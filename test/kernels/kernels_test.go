package kernels

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	kernels = flag.String("kernels", "6.1 6.12", "the `kernels` to boot")
	scenes  = flag.String("scenes", "", "a `pattern` of the tests of test/integration to run; empty: all")
	short   = flag.Bool("features", false, "run only what shows the features")
	cache   = flag.String("cache", "../../bin/kernels", "the `directory` for what is made once")
)

// TestKernels runs the tests of test/integration on each kernel.
func TestKernels(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, and in CI a test that would skip fails")
		}
		t.Skip("needs root, to unpack packages")
	}
	dir, err := filepath.Abs(*cache)
	if err != nil {
		t.Fatal(err)
	}
	i, err := makeImages(filepath.Join(dir, "images"), all)
	if err != nil {
		t.Fatal(err)
	}
	tests := *scenes
	if *short {
		tests = pattern()
	}
	job, err := makeJob(dir, tests)
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range strings.Fields(*kernels) {
		if !slices.Contains(all, kernel) {
			t.Fatalf("kernel %s is none of %v", kernel, all)
		}
		t.Run(kernel, func(t *testing.T) {
			t.Parallel()
			runScenes(t, i, kernel, job, dir)
		})
	}
}

// all are the kernels of the suite.
var all = []string{"6.1", "6.12"}

// runScenes runs the tests on one kernel, each of them a subtest here.
func runScenes(t *testing.T, i images, kernel, job, dir string) {
	m, err := newMachine(i, kernel, job, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(m.disk) }()
	// To be followed while it runs.
	log, err := os.Create(filepath.Join(dir, kernel+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r := newResults()
	code, err := m.run(t.Context(), func(line string) {
		_, _ = log.WriteString(strings.TrimPrefix(line, marker) + "\n")
		r.read(line)
	})
	for _, one := range r.top() {
		t.Run(one.name, func(t *testing.T) {
			switch one.outcome {
			case "PASS":
			case "SKIP":
				t.Skip(r.said(one))
			case "FAIL":
				t.Error(r.said(one))
			default:
				t.Errorf("never ended\n%s", r.said(one))
			}
		})
	}
	switch {
	case err != nil:
		t.Error(err)
	case code != 0:
		t.Errorf("the tests ended with exit status %d: %s", code, tail(log.Name()))
	case len(r.all) == 0:
		t.Errorf("no test matches %q", *scenes)
	}
}
