// Package docs compares the pages with the code and with each other.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = ".."

// TestConditionsPageListsEveryReasonAndStep compares the rows of conditions.md with
// the constants in the code.
func TestConditionsPageListsEveryReasonAndStep(t *testing.T) {
	page := read(t, "conditions.md")
	conditions, steps, found := strings.Cut(page, "\n## Steps\n")
	if !found {
		t.Fatal("conditions.md has no section Steps")
	}
	var reasons []string
	for _, file := range []string{"condition.go", "health.go", "left_alone.go"} {
		reasons = append(reasons, constants(t, root+"/pkg/healer/"+file, func(_, kind string) bool { return kind == "Reason" || kind == "LeftReason" })...)
	}
	reasons = append(reasons, constants(t, root+"/internal/cluster/reported.go", func(name, _ string) bool { return strings.HasPrefix(name, "reason") })...)
	for _, m := range regexp.MustCompile(`errors\.New\("([A-Z][A-Za-z]+): `).FindAllStringSubmatch(read(t, "../pkg/healer/provider/driver/stage.go"), -1) {
		reasons = append(reasons, m[1])
	}
	reasons = append(reasons, constants(t, root+"/pkg/bucket/table.go", func(_, kind string) bool { return kind == "Reason" })...)
	files, err := filepath.Glob(root + "/pkg/healer/provider/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		reasons = append(reasons, constants(t, file, func(_, kind string) bool { return kind == "Reason" })...)
		names = append(names, constants(t, file, func(name, _ string) bool { return strings.HasPrefix(name, "Step") })...)
	}
	same(t, "reasons", rows(conditions, `[A-Z][A-Za-z]+`), reasons)
	same(t, "steps", rows(steps, `[a-z]+(?:-[a-z]+)*`), names)
}

// TestConditionsPageHasAnchors: explain, events and alerts link to each reason and step by
// its name. With -write missing ones are added.
func TestConditionsPageHasAnchors(t *testing.T) {
	const name = "conditions.md"
	page := read(t, name)
	anchored := rowStart.ReplaceAllStringFunc(page, func(row string) string {
		m := rowStart.FindStringSubmatch(row)
		if slices.Contains(heads, m[1]) {
			return row
		}
		return "| <a id=\"" + m[1] + "\"></a>" + m[1] + m[2]
	})
	switch {
	case anchored == page:
	case *write:
		if err := os.WriteFile(name, []byte(anchored), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error(name + " has a reason or step without its anchor (go test ./docs -args -write)")
	}
}

// TestControllerPageListsEveryReason compares the rows of controller.md with the
// constants in the code.
func TestControllerPageListsEveryReason(t *testing.T) {
	var listed []string
	_, reasons, _ := strings.Cut(read(t, "controller.md"), "\n## Reasons\n")
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z][A-Za-z]+)` \\|").FindAllStringSubmatch(reasons, -1) {
		listed = append(listed, m[1])
	}
	same(t, "reasons of the controller", listed, constants(t, root+"/internal/controller/reasons.go", func(name, _ string) bool { return strings.HasPrefix(name, "Reason") }))
}

// rowStart is how the row of a reason or a step begins; heads are those of tables.
var (
	rowStart = regexp.MustCompile(`(?m)^\| (?:<a id="[^"]*"></a>)?([A-Z][A-Za-z]+|[a-z]+(?:-[a-z]+)*)((?: \(\\\*\))? \|)`)
	heads    = []string{"reason", "step", "filesystem", "evidence"}
)

// rows returns the first cells that match, without those of table heads.
func rows(page, cell string) []string {
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^\| (?:<a id="[^"]*"></a>)?(`+cell+`)(?: \(\\\*\))? \|`).FindAllStringSubmatch(page, -1) {
		if !slices.Contains(heads, m[1]) {
			found = append(found, m[1])
		}
	}
	return found
}

// constants returns the values of a file's string constants that are wanted by name
// and type.
func constants(t *testing.T, file string, wanted func(name, kind string) bool) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is {
			return true
		}
		kind := ""
		switch of := spec.Type.(type) {
		case *ast.Ident:
			kind = of.Name
		case *ast.SelectorExpr: // a provider's own
			kind = of.Sel.Name
		}
		for i, value := range spec.Values {
			literal, plain := value.(*ast.BasicLit)
			if !plain || literal.Kind != token.STRING || !wanted(spec.Names[i].Name, kind) {
				continue
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, text)
		}
		return true
	})
	return values
}

func same(t *testing.T, what string, page, code []string) {
	t.Helper()
	slices.Sort(page)
	slices.Sort(code)
	if len(code) == 0 || !slices.Equal(page, slices.Compact(code)) {
		t.Errorf("%s: the page has %v, the code has %v", what, page, code)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	named   = regexp.MustCompile(`<a id="([^"]*)"></a>`)
	// anchorless is what GitHub leaves out of a heading's anchor.
	anchorless = regexp.MustCompile(`[^a-z0-9 _-]`)
	// ours are paths of this repository; policy.md quotes some of others.
	ours   = regexp.MustCompile("`((?:pkg|internal|cmd|test|deploy|\\.ci)/[A-Za-z0-9_./-]+)`")
	fences = regexp.MustCompile("(?s)```.*?```")
)

// TestLinks follows every link between the pages, to the heading.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(fences.ReplaceAllString(read(t, page), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if to != "" {
				target = filepath.Join(filepath.Dir(page), to)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", page, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s: %s has no heading %q, only %v", page, target, anchor, anchors(t, target))
			}
		}
	}
}

func anchors(t *testing.T, page string) []string {
	t.Helper()
	var all []string
	text := fences.ReplaceAllString(read(t, page), "")
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		text := strings.ToLower(link.ReplaceAllString(m[1], ""))
		all = append(all, strings.ReplaceAll(anchorless.ReplaceAllString(text, ""), " ", "-"))
	}
	return all
}

// TestPaths looks for every file that a page names.
func TestPaths(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range ours.FindAllStringSubmatch(read(t, page), -1) {
			path := filepath.Join(root, m[1])
			if _, err := os.Stat(filepath.Dir(path)); err != nil {
				continue // another repository's
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// TestFilesInArchitecture looks for the files that architecture.md names without a
// directory.
func TestFilesInArchitecture(t *testing.T) {
	var files []string
	for _, top := range []string{"cmd", "pkg", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, _ fs.DirEntry, err error) error {
			files = append(files, filepath.Base(path))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	named := regexp.MustCompile("`([a-z0-9_]+\\.go)`").FindAllStringSubmatch(read(t, "architecture.md"), -1)
	if len(named) == 0 {
		t.Error("architecture.md names no file")
	}
	for _, m := range named {
		if !slices.Contains(files, m[1]) {
			t.Errorf("architecture.md names %s, which is not below pkg, internal or cmd", m[1])
		}
	}
}

// TestPagesThatTheCodeNames looks for every page that code, manifests and Makefile
// name.
func TestPagesThatTheCodeNames(t *testing.T) {
	page := regexp.MustCompile(`docs/[a-z-]+\.md`)
	missing := map[string]string{}
	for _, top := range []string{"cmd", "deploy", "pkg", "internal", "test", "Makefile", ".golangci.yml"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() { // the chart links to directories
				return err
			}
			raw, err := os.ReadFile(path)
			for _, name := range page.FindAllString(string(raw), -1) {
				if name == "docs/csiaddonsnode.md" {
					continue // of kubernetes-csi-addons
				}
				if _, statErr := os.Stat(filepath.Join(root, name)); statErr != nil {
					missing[path] = name
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("%s names %s, which does not exist", path, missing[path])
	}
}

// pages are all pages of the repository, relative to this directory.
func pages(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("*.md")
	if err != nil || len(all) == 0 {
		t.Fatal("no pages: ", err)
	}
	drivers, err := filepath.Glob("drivers/*.md")
	if err != nil || len(drivers) == 0 {
		t.Fatal("no pages of drivers: ", err)
	}
	return append(append(all, drivers...), root+"/README.md", root+"/CONTRIBUTING.md", root+"/SECURITY.md", root+"/CHANGELOG.md")
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestReadmeIsShort: it has to show what this is, how to try and how to install it, within a
// few screens.
func TestReadmeIsShort(t *testing.T) {
	const most = 160
	if lines := strings.Count(read(t, root+"/README.md"), "\n"); lines > most {
		t.Errorf("the README has %d lines, %d at most", lines, most)
	}
}

// TestPagesAreShort: the README and the pages below docs have to be read by those who run this. A
// new sentence takes the place of an old one, mostly of one that another page says as well.
func TestPagesAreShort(t *testing.T) {
	const most = 22000
	words := 0
	for _, page := range pages(t) {
		if strings.HasPrefix(page, root) && page != root+"/README.md" {
			continue // CHANGELOG.md only grows
		}
		for _, word := range strings.Fields(read(t, page)) {
			if strings.Trim(word, "|") != "" { // not the bar of a table
				words++
			}
		}
	}
	if words > most {
		t.Errorf("the pages have %d words, %d at most", words, most)
	}
}

// TestVersions compares the versions that README and support.md name with those that the
// tests' modules pin.
func TestVersions(t *testing.T) {
	pinned := func(module, file string) string {
		t.Helper()
		m := regexp.MustCompile(`(?m)^(?:require )?\s*` + regexp.QuoteMeta(module) + ` v(\S+)`).FindStringSubmatch(read(t, root+"/test/"+file+"/go.mod"))
		if m == nil {
			t.Fatalf("test/%s pins no %s", file, module)
		}
		return m[1]
	}
	newest, oldest := pinned("k8s.io/kubernetes", "controlplane"), pinned("k8s.io/kubernetes", "controlplane-1.32")
	readme, support := read(t, root+"/README.md"), read(t, "support.md")
	for _, row := range []struct{ page, says string }{
		{readme, "| kubectl | " + newest + ", " + oldest + " |"},
		{readme, "| Helm | " + pinned("helm.sh/helm/v3", "chart") + " |"},
		{support, "| " + newest + " | " + oldest + " |"},
	} {
		if !strings.Contains(row.page, row.says) {
			t.Errorf("no page says %q", row.says)
		}
	}
	_, table, _ := strings.Cut(read(t, "kernels.md"), "\n| | ")
	booted, _, _ := strings.Cut(table, " |\n")
	for version := range strings.SplitSeq(booted, " | ") {
		if !strings.Contains(support, version) {
			t.Errorf("support.md does not name Linux %s", version)
		}
	}
}
