package kernels

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	kernels = flag.String("kernels", strings.Join(all, " "), "the `kernels` to boot")
	scenes  = flag.String("scenes", "", "a `pattern` of other tests of test/integration to run instead")
	brief   = flag.Bool("short", false, "run the short form, and compare with docs/kernels.md")
	write   = flag.Bool("write", false, "run the same on this machine, too, and write docs/kernels.md")
	cache   = flag.String("cache", "../../bin/kernels", "the `directory` for what is made once")
)

// needsForm skips where the test was not told what to run: it takes minutes, and `go test`
// of all packages is not asking for that.
func needsForm(t *testing.T) {
	if !*brief && !*write && *scenes == "" {
		t.Skip("runs by make kernels and make kernels-short")
	}
}

// TestKernels runs the tests of test/integration on each kernel.
func TestKernels(t *testing.T) {
	needsForm(t)
	s := newSuite(t)
	s.makeJob(func(kernel string) string {
		switch {
		case *brief:
			return pattern(featuresOf(shortOn(kernel)))
		case *scenes == "":
			return pattern(features)
		}
		return *scenes
	})
	done := newTable(append(slices.Clone(all), s.host()))
	var mu sync.Mutex
	ended := 0
	t.Run("on", func(t *testing.T) {
		for _, kernel := range strings.Fields(*kernels) {
			if !slices.Contains(all, kernel) {
				t.Fatalf("kernel %s is none of %v", kernel, all)
			}
			t.Run(kernel, func(t *testing.T) {
				t.Parallel()
				r := s.machine(t, kernel, kernel).test(t)
				mu.Lock()
				defer mu.Unlock()
				if r.ended {
					ended++
					done.add(kernel, r)
				}
			})
		}
	})
	switch {
	case *write && ended < len(all):
		t.Error("docs/kernels.md stays as it is: not every kernel was seen to the end")
	case *write:
		done.add(s.host(), s.here())
		if err := os.WriteFile(page, []byte(done.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	case *brief:
		compare(t, done)
	}
}

// TestUpgrade boots one kernel after the other with one disk: what was recorded
// with one is read with the next.
func TestUpgrade(t *testing.T) {
	needsForm(t)
	if *brief || *scenes != "" && *scenes != "TestUpgrade" {
		t.Skip("only in the long form")
	}
	s := newSuite(t)
	s.makeJob(func(string) string { return "TestUpgrade" })
	m := s.machine(t, all[0], "upgrade")
	for i, kernel := range []string{all[0], all[1], all[0]} {
		m.kernel, m.only = kernel, "TestUpgradeAfter"
		if i == 0 {
			m.only = "TestUpgradeBefore"
		}
		t.Run(kernel, func(t *testing.T) { m.test(t) })
	}
}

// suite is what the machines have in common.
type suite struct {
	t      *testing.T
	dir    string
	images images
	job    string
}

func newSuite(t *testing.T) *suite {
	t.Helper()
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
	return &suite{t: t, dir: dir, images: i}
}

func (s *suite) makeJob(pattern func(kernel string) string) {
	s.t.Helper()
	// Tests tell more when they end themselves than when the machine is ended.
	timeout := 50 * time.Minute
	if *brief {
		timeout = 15 * time.Minute
	}
	patterns := map[string]string{}
	for _, kernel := range all {
		patterns[kernel] = pattern(kernel)
	}
	job, err := makeJob(s.dir, patterns, timeout)
	if err != nil {
		s.t.Fatal(err)
	}
	s.job = job
}

// machine makes a machine whose files have a name, until the test ends.
func (s *suite) machine(t *testing.T, kernel, name string) *machine {
	t.Helper()
	m := &machine{kernel: kernel, images: s.images, job: s.job, name: filepath.Join(s.dir, name)}
	if err := m.format(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(m.disk()) })
	return m
}

// test runs the tests on a machine, each of them a subtest here.
func (m *machine) test(t *testing.T) *results {
	t.Helper()
	// To be followed while it runs.
	log, err := os.Create(m.name + ".log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r := newResults()
	code, err := m.run(t.Context(), func(line string) {
		_, _ = log.WriteString(strings.TrimPrefix(line, marker) + "\n")
		r.read(line)
	})
	r.ended = err == nil
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
		t.Error("no test ran")
	}
	return r
}

// host is the kernel of this machine, as in "6.18".
func (s *suite) host() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		s.t.Fatal(err)
	}
	parts := strings.SplitN(unix.ByteSliceToString(name.Release[:]), ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// here runs what shows the features on this machine, with the same binaries.
func (s *suite) here() *results {
	s.t.Helper()
	job := filepath.Join(s.dir, "job")
	cmd := exec.CommandContext(context.Background(), filepath.Join(job, "integration.test"), "-test.v=test2json", "-test.run="+pattern(features))
	cmd.Env = append(os.Environ(), "NODE_HEALER_TEST_BIN="+job)
	out, err := cmd.CombinedOutput()
	r := newResults()
	for line := range strings.Lines(string(out)) {
		r.read(strings.TrimSuffix(line, "\n"))
	}
	if err != nil {
		s.t.Errorf("on this machine: %v\n%s", err, out)
	}
	return r
}

// compare fails the test where the page says something else.
func compare(t *testing.T, now table) {
	t.Helper()
	was, err := readTable(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range strings.Fields(*kernels) {
		for _, f := range featuresOf(shortOn(kernel)) {
			if was, now := was.cells[f.name][kernel], now.cells[f.name][kernel]; was != now {
				t.Errorf("%s on %s: docs/kernels.md says %q, and it is %q (make kernels)", f.name, kernel, was, now)
			}
		}
	}
}
