package pkg_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// destroys matches the programs and system calls that make, repair or empty a filesystem.
var destroys = regexp.MustCompile(`(?i)\b(?:mkfs|mke2fs|mkswap|fsck|e2fsck|btrfsck|xfs_repair|wipefs|blkdiscard|blksecdiscard|blkzeroout)\b|\bdd\b.*\bof=|^dd$|^of=`)

// namesIn returns what a file names of that. Comments do not count: they say what must not be done.
func namesIn(t *testing.T, name string, text []byte) (found []string) {
	t.Helper()
	take := func(s string) {
		if destroys.MatchString(s) {
			found = append(found, s)
		}
	}
	if filepath.Ext(name) != ".go" {
		for line := range strings.Lines(string(text)) {
			code, _, _ := strings.Cut(" "+line, " #")
			take(code)
		}
		return found
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			take(n.Name)
		case *ast.BasicLit:
			if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				take(s)
			}
		}
		return true
	})
	return found
}

// Data would be lost: a filesystem that looks empty or broken from one node may be in use by another,
// or its disk only be away. Pages may name such a program for a person.
func TestNothingNamesAProgramThatMakesOrRepairsAFilesystem(t *testing.T) {
	for name, text := range map[string]string{
		"a.go":       "package a\n\nvar program = []string{\"/sbin/mkfs.ext4\", \"-q\"}\n",
		"b.go":       "package b\n\nvar args = []string{\"dd\", \"if=/dev/zero\"}\n",
		"c.go":       "package c\n\nimport \"golang.org/x/sys/unix\"\n\nconst request = unix.BLKDISCARD\n",
		"d.yaml":     "command: [sh, -c, fsck -y /dev/sdb]\n",
		"Dockerfile": "RUN dd if=/dev/zero of=/dev/sdb\n",
	} {
		if len(namesIn(t, name, []byte(text))) == 0 {
			t.Errorf("%s is not found: %s", name, text)
		}
	}
	if found := namesIn(t, "e.go", []byte("package e // never runs mkfs\n")); len(found) > 0 {
		t.Errorf("in a comment: %q", found)
	}

	files := 0
	for _, dir := range []string{"../cmd", "../internal", ".", "../deploy", "../docs/examplefs", "../Dockerfile"} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.HasSuffix(name, "_test.go") || filepath.Ext(name) == ".md" {
				return err
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			files++
			for _, found := range namesIn(t, name, text) {
				t.Errorf("%s names %q", name, found)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if files < 300 {
		t.Errorf("only %d files were read", files)
	}
}
