package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Build says how the binaries under test are built.
type Build int

const (
	// Faults builds with the tag `faults`, with which a worker can be stopped at
	// every instant of a step.
	Faults Build = iota
	// Plain builds what is deployed, to be measured.
	Plain
	// Nothing is for tests of the harness itself, which start no server.
	Nothing
)

// bin is where the binaries under test are.
var bin string

// prebuilt is the environment variable with a directory that has them already. So it
// has on a machine without Go, on which test/kernels runs the tests.
const prebuilt = "NODE_HEALER_TEST_BIN"

// sharedBuilds is the environment variable with a directory in which the packages of one run
// keep what they build with Faults for each other: see .ci/integration, which removes it.
const sharedBuilds = "TEST_BUILDS"

// Server is the path of the node-healer under test.
func Server() string { return filepath.Join(bin, "node-healer") }

// into builds the binaries into a directory.
func (b Build) into(dir string) error {
	if b == Nothing {
		return nil
	}
	if bin != "" {
		return nil
	}
	bin = dir
	if _, err := buildOnce(fuseDaemon, func(to string) error { return buildHelper(to, fuseDaemon) }); err != nil {
		return err
	}
	for _, name := range underTest {
		if _, err := buildOnce(name, func(to string) error { return b.buildAs(to, name) }); err != nil {
			return err
		}
	}
	return nil
}

// underTest are the commands that nearly every test needs.
var underTest = []string{"node-healer", "node-healer-worker"}

func (b Build) buildAs(binary, name string) error {
	flags := withFaults
	if b == Plain {
		flags = released
	}
	return buildAs(binary, name, b == Faults && raceDetector && name == "node-healer", flags)
}

// fuseDaemon is the program of the tests' own FUSE daemons.
const fuseDaemon = "fusedaemon"

// buildHelper builds a program of the tests, without a library.
func buildHelper(binary, name string) error {
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", binary, "github.com/csi-addons/node-healer/test/harness/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return nil
}

// raceDetector is whether server and gateway look for data races (`make race`), which costs
// them four times the processor time. Otherwise only unit tests do.
var raceDetector = os.Getenv("TEST_RACE") != ""

var (
	// released are the flags with which the Makefile builds, withFaults those of the tests.
	released   = []string{"-tags=grpcnotrace", "-trimpath", "-ldflags=-s -w"}
	withFaults = []string{"-tags=faults,grpcnotrace", "-trimpath", "-ldflags=-s -w"}
)

// buildAs builds one of the commands.
func buildAs(binary, name string, race bool, flags []string) error {
	args, cgo := append([]string{"build", "-buildvcs=false", "-o", binary}, flags...), "0"
	if race {
		args, cgo = append(args, "-race"), "1" // which it needs
	}
	cmd := exec.Command("go", append(args, "github.com/csi-addons/node-healer/cmd/"+name)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return nil
}

// buildOnce builds a program that only some tests need, unless this run has it already,
// and returns its path.
func buildOnce(name string, build func(to string) error) (string, error) {
	path := filepath.Join(bin, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	lock, err := os.Create(path + ".lock") // other lanes may need it, too
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := build(path + ".new"); err != nil {
		return "", err
	}
	return path, os.Rename(path+".new", path)
}
