package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestExampleProvider compares writing-a-provider.md with the example, which is compiled
// and tested: no other code stands on the page but the line that registers it, which
// TestExampleProvider in test/integration compiles.
func TestExampleProvider(t *testing.T) {
	var code []string
	for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "writing-a-provider.md"), -1) {
		code = append(code, m[1])
	}
	files, err := filepath.Glob("examplefs/*.go")
	if err != nil || len(code) != len(files)+1 || !strings.HasPrefix(code[len(files)], "examplefs.New(") {
		t.Fatalf("%d blocks of code, files %v, %v", len(code), files, err)
	}
	lines := 0
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || code[i] != string(text) {
			t.Errorf("the page does not show %s: %v", file, err)
		}
		lines += strings.Count(code[i], "\n")
	}
	if lines >= 100 {
		t.Errorf("the example has %d lines", lines)
	}
}
