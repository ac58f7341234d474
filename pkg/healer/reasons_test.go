package healer_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// TestAllReasons compares with the source, so that a new reason is not
// forgotten.
func TestAllReasons(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "condition.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []healer.Reason
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is {
			return true
		}
		if kind, is := spec.Type.(*ast.Ident); !is || kind.Name != "Reason" {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		declared = append(declared, healer.Reason(value))
		return true
	})
	known := healer.Reasons()
	slices.Sort(declared)
	if len(declared) == 0 || !slices.Equal(known, declared) {
		t.Errorf("known are %v, declared %v", known, declared)
	}
}
