package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestExampleProvider: the example is short, its files are linked to, and no other code stands
// on the page but the line that registers it, which TestExampleProvider in test/integration
// compiles.
func TestExampleProvider(t *testing.T) {
	page := read(t, "writing-a-provider.md")
	code := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(code) != 1 || !strings.HasPrefix(code[0][1], "examplefs.New(") {
		t.Errorf("the code on the page is %q", code)
	}
	files, err := filepath.Glob("examplefs/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("files %v, %v", files, err)
	}
	lines := 0
	for _, file := range files {
		if !strings.Contains(page, "]("+file+")") {
			t.Errorf("the page does not link to %s", file)
		}
		lines += strings.Count(read(t, file), "\n")
	}
	if lines >= 100 {
		t.Errorf("the example has %d lines", lines)
	}
}
