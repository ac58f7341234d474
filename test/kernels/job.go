package kernels

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed run.sh
var runScript string

// module is this module's name.
const module = "github.com/csi-addons/node-healer"

// The binaries under test are built as on this machine, but without the race
// detector, which an emulated processor is too slow for.
var binaries = map[string]string{
	"node-healer":        module + "/cmd/node-healer",
	"node-healer-worker": module + "/cmd/node-healer-worker",
	"attacker":           module + "/test/harness/attacker",
}

// makeJob builds what one run is about: the binaries, the tests, and the command
// that runs those of a pattern.
func makeJob(dir, pattern string) (image string, err error) {
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
	tests := strings.Join([]string{
		"#!/bin/bash",
		"export NODE_HEALER_TEST_BIN=/job CI=true",
		"pattern=" + quote(pattern),
		fmt.Sprintf(`exec /job/integration.test -test.v=test2json -test.timeout=%s -test.run="${NODE_HEALER_TEST_ONLY:-$pattern}"`, testTimeout),
		"",
	}, "\n")
	for name, content := range map[string]string{"run": runScript, "tests": tests} {
		if err := os.WriteFile(filepath.Join(tree, name), []byte(content), 0o755); err != nil {
			return "", err
		}
	}
	image = filepath.Join(dir, "job.squashfs")
	_, err = run("", "mksquashfs", tree, image, "-comp", "lz4", "-noappend", "-quiet", "-no-progress")
	return image, err
}

func goBuild(command, output, path string, flags ...string) error {
	args := append([]string{"CGO_ENABLED=0", "go", command, "-buildvcs=false", "-tags=faults", "-ldflags=-s -w", "-o", output}, flags...)
	_, err := run("", "env", append(args, path)...)
	return err
}

// quote quotes a word for the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
