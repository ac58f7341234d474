// Package pkg_test checks what others may import as a whole.
package pkg_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// exported returns the packages below pkg/ as who imports them sees them.
func exported(t *testing.T) (all []*types.Package) {
	t.Helper()
	exports := map[string]string{}
	var packages []string
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,Standard,DepOnly", "./...")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Export string
			DepOnly            bool
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly && p.Export != "" {
			packages = append(packages, p.ImportPath)
		}
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, path := range packages {
		p, err := imports.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// Nobody outside of this module can name a type of internal/: a provider, a driver or a
// program that is built on pkg/ could not use what mentions one.
func TestNoExportedIdentifierMentionsAnInternalType(t *testing.T) {
	for _, p := range exported(t) {
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				if internal := mentions(o.Type(), p, map[types.Type]bool{}); internal != "" {
					t.Errorf("%s.%s mentions %s", p.Path(), name, internal)
				}
			}
		}
	}
}

// mentions returns the name of a type of internal/ that a type of package p shows to who
// imports p; empty for none.
func mentions(t types.Type, p *types.Package, seen map[types.Type]bool) string {
	if seen[t] {
		return ""
	}
	seen[t] = true
	var parts []types.Type
	switch t := t.(type) {
	case *types.Alias:
		parts = append(parts, types.Unalias(t))
	case *types.Named:
		if in := t.Obj().Pkg(); in != nil && strings.HasPrefix(in.Path(), "github.com/csi-addons/node-healer/internal/") {
			return in.Path() + "." + t.Obj().Name()
		} else if in != p {
			return "" // its own package is checked for itself
		}
		for m := range t.Methods() {
			if m.Exported() {
				parts = append(parts, m.Type())
			}
		}
		parts = append(parts, t.Underlying())
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				parts = append(parts, f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			parts = append(parts, m.Type())
		}
	case *types.Signature:
		for v := range t.Params().Variables() {
			parts = append(parts, v.Type())
		}
		for v := range t.Results().Variables() {
			parts = append(parts, v.Type())
		}
	case *types.Map:
		parts = append(parts, t.Key(), t.Elem())
	case interface{ Elem() types.Type }: // a pointer, slice, array or channel
		parts = append(parts, t.Elem())
	}
	for _, part := range parts {
		if internal := mentions(part, p, seen); internal != "" {
			return internal
		}
	}
	return ""
}
