package kernels

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

//go:embed run.sh
var runScript string

// module is this module's name.
const module = "github.com/csi-addons/node-healer"

// The binaries under test are built as the released ones, which are in the build
// cache, but for the faults: the race
// detector is too slow on an emulated processor.
var binaries = map[string]string{
	"node-healer":        module + "/cmd/node-healer",
	"node-healer-worker": module + "/cmd/node-healer-worker",
	"attacker":           module + "/test/harness/attacker",
	"fusedaemon":         module + "/test/harness/fusedaemon",
}

// makeJob builds what one run is about: the binaries, the tests, and the command
// that runs those of the kernel's pattern.
func makeJob(dir string, patterns map[string]string, timeout time.Duration) (image string, err error) {
	tree := filepath.Join(dir, "job")
	if err := os.RemoveAll(tree); err != nil {
		return "", err
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return "", err
	}
	for name, path := range binaries {
		if err := goBuild("build", filepath.Join(tree, name), path); err != nil {
			return "", err
		}
	}
	if err := goBuild("test", filepath.Join(tree, "integration.test"), module+"/test/integration", "-c"); err != nil {
		return "", err
	}
	var cases strings.Builder
	for kernel, pattern := range patterns {
		fmt.Fprintf(&cases, "%s) pattern=%s;; ", kernel, quote(pattern))
	}
	tests := strings.Join([]string{
		"#!/bin/bash",
		// An emulated processor does not see how slow it is.
		"export NODE_HEALER_TEST_BIN=/job CI=true TEST_SLOW=3",
		"case $NODE_HEALER_TEST_VM in " + cases.String() + "esac",
		fmt.Sprintf(`exec /job/integration.test -test.v=test2json -test.timeout=%s -test.run="${NODE_HEALER_TEST_ONLY:-$pattern}"`, timeout),
		"",
	}, "\n")
	for name, content := range map[string]string{"run": runScript, "tests": tests} {
		if err := os.WriteFile(filepath.Join(tree, name), []byte(content), 0o755); err != nil {
			return "", err
		}
	}
	image = filepath.Join(dir, "job.squashfs")
	_, err = run("", "mksquashfs", tree, image, "-noI", "-noD", "-noF", "-noX", "-noappend", "-quiet", "-no-progress")
	return image, err
}

func goBuild(command, output, path string, flags ...string) error {
	args := append([]string{"CGO_ENABLED=0", "go", command, "-buildvcs=false", "-trimpath", "-tags=faults,grpcnotrace", "-ldflags=-s -w", "-o", output}, flags...)
	_, err := run("", "env", append(args, path)...)
	return err
}

// quote quotes a word for the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
