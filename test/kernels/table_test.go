package kernels

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
	"github.com/csi-addons/node-healer/pkg/healer/provider/fuse"
	"github.com/csi-addons/node-healer/pkg/healer/provider/mounts"
)

// page is the table as it was committed.
const page = "../../docs/kernels.md"

// TestPage sees that the page has every feature and every kernel, and no other.
func TestPage(t *testing.T) {
	was, err := readTable(page)
	if err != nil {
		t.Fatal(err)
	}
	if len(was.kernels) != len(all)+1 || !slices.Equal(was.kernels[:len(all)], all) {
		t.Errorf("the page has the kernels %v, want %v and the machine's own (make kernels)", was.kernels, all)
	}
	for _, f := range features {
		if was.cells[f.name] == nil {
			t.Errorf("the page lacks %q (make kernels)", f.name)
		}
	}
	if len(was.cells) != len(features) {
		t.Errorf("the page has %d features, want %d (make kernels)", len(was.cells), len(features))
	}
	if raw, err := os.ReadFile(page); err != nil || !strings.HasPrefix(string(raw), tableHead) {
		t.Error("the page does not begin with tableHead (make kernels): ", err)
	}
}

// TestFeatures sees that every condition and every step is in the short form.
func TestFeatures(t *testing.T) {
	var names []string
	for _, f := range featuresOf(short) {
		names = append(names, f.name)
	}
	text := strings.Join(names, "\n")
	words := append(reasons(t),
		mounts.StepRebind, mounts.StepUnmountDuplicate, mounts.StepReplace, mounts.StepUnmountDeadTop,
		containers.StepReplaceInContainer, fuse.StepAbortConnection, driver.StepDelegate, driver.StepRestage,
	)
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("the short form shows no %s", word)
		}
	}
}

// reasons are the conditions' names, from the code that declares them.
func reasons(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../pkg/healer/condition.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Reason" {
			for _, v := range spec.Values {
				name, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, name)
			}
		}
		return true
	})
	if len(names) == 0 {
		t.Fatal("no reasons found")
	}
	return names
}

// TestTable reads what it wrote.
func TestTable(t *testing.T) {
	r := newResults()
	for _, f := range features[2:] {
		for _, name := range f.tests {
			r.read(marker + "=== RUN   " + name)
			r.read("    x_test.go:1: a reason | of one")
			r.read(marker + "--- " + map[bool]string{true: "PASS", false: "SKIP"}[name != features[2].tests[0]] + ": " + name + " (0.00s)")
		}
	}
	made := newTable([]string{"6.1"})
	made.add("6.1", r)
	for i, want := range []string{no, no, "a reason | of one", yes} {
		if got := made.cells[features[i].name]["6.1"]; got != want {
			t.Errorf("%s: %q, want %q", features[i].name, got, want)
		}
	}
	text := made.String()
	if !strings.Contains(text, "| "+features[2].name+" | 1 |\n") || !strings.Contains(text, "\n- "+features[3].name+"\n") {
		t.Error(text)
	}
	path := filepath.Join(t.TempDir(), "kernels.md")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := readTable(path); err != nil || again.String() != text {
		t.Errorf("%v: it reads\n%s", err, again)
	}
}
