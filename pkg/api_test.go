package pkg_test

import (
	"flag"
	"fmt"
	"go/types"
	"os"
	"slices"
	"strings"
	"testing"
)

// write has TestAPI write api.txt instead of comparing with it.
var write = flag.Bool("write", false, "write pkg/api.txt anew")

// stable are the packages of docs/api.md, below pkg/, that others may build on.
var stable = []string{
	"api", "api/healerpb", "api/v1alpha1", "api/volumehealth", "app", "facts", "facts/layout", "facts/netfs",
	"healer", "healer/providertest", "nodehealer",
}

// What others build on changes in pkg/api.txt, too, where a reviewer sees it.
func TestAPI(t *testing.T) {
	var lines []string
	for _, p := range exported(t) {
		_, path, _ := strings.Cut(p.Path(), "/pkg/")
		if !slices.Contains(stable, path) {
			continue
		}
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				lines = append(lines, linesOf(p, o)...)
			}
		}
	}
	slices.Sort(lines)
	now := strings.Join(lines, "\n") + "\n"
	if *write {
		if err := os.WriteFile("api.txt", []byte(now), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	before, err := os.ReadFile("api.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range without(strings.Split(string(before), "\n"), lines) {
		t.Errorf("pkg/api.txt has what is no longer there: %s", gone)
	}
	for _, added := range without(lines, strings.Split(string(before), "\n")) {
		t.Errorf("pkg/api.txt lacks: %s", added)
	}
	if t.Failed() {
		t.Log("See docs/api.md. go test ./pkg -args -write writes the file.")
	}
}

func without(lines, others []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return l == "" || slices.Contains(others, l) })
}

// linesOf returns a line for what an exported name is, and one for each exported field and
// method of a type.
func linesOf(p *types.Package, o types.Object) (lines []string) {
	short := func(other *types.Package) string {
		if other == p {
			return ""
		}
		return other.Name()
	}
	at := strings.TrimPrefix(p.Path(), "github.com/csi-addons/node-healer/pkg/")
	add := func(format string, args ...any) { lines = append(lines, at+": "+fmt.Sprintf(format, args...)) }
	named, isType := o.(*types.TypeName)
	if !isType {
		text := types.ObjectString(o, short)
		if c, is := o.(*types.Const); is {
			text += " = " + c.Val().ExactString()
		}
		add("%s", text)
		return lines
	}
	structure, isStruct := named.Type().Underlying().(*types.Struct)
	if isStruct && !named.IsAlias() {
		add("type %s struct", named.Name())
		for f := range structure.Fields() {
			if f.Exported() {
				add("%s.%s %s", named.Name(), f.Name(), types.TypeString(f.Type(), short))
			}
		}
	} else {
		add("%s", types.ObjectString(o, short))
	}
	methods := types.NewMethodSet(types.NewPointer(named.Type()))
	for m := range methods.Methods() {
		if m.Obj().Exported() && m.Obj().Pkg() == p {
			add("(%s) %s%s", named.Name(), m.Obj().Name(), strings.TrimPrefix(types.TypeString(m.Type(), short), "func"))
		}
	}
	return lines
}
