package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A mutation that no longer breaks its line, or whose tests have other names now, would
// show nothing.
func TestMutationsAreOfThisTree(t *testing.T) {
	const tree = "../.."
	for _, m := range mutations {
		source, err := os.ReadFile(filepath.Join(tree, m.file))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if n := strings.Count(string(source), m.from); n != 1 {
			t.Errorf("%s: %s has %q %d times", m.name, m.file, m.from, n)
		}
		for _, name := range strings.Split(m.run, "|") {
			if !hasTest(t, filepath.Join(tree, m.tests), name) {
				t.Errorf("%s: %s has no test %s", m.name, m.tests, name)
			}
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func ` + name + `\(t \*testing\.T\)`)
	for _, f := range files {
		source, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if declared.Match(source) {
			return true
		}
	}
	return false
}
