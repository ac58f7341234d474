package docs

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
)

var write = flag.Bool("write", false, "write the table in errors.md anew")

// TestErrorsPage compares the table of a driver's codes with the one in the code.
func TestErrorsPage(t *testing.T) {
	const begin, end = "<!-- made by `go test ./docs -args -write` -->\n", "<!-- end -->\n"
	before, rest, found := strings.Cut(read(t, "errors.md"), begin)
	section, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatal("errors.md has no table")
	}
	want := "| code | tier | type | afterwards |\n|---|---|---|---|\n"
	for _, r := range driver.Rows() {
		afterwards := ""
		switch {
		case r.Unsettled():
			afterwards = "stops"
		case r.Code == codes.Unimplemented:
			afterwards = "remembered"
		case r.Code == codes.Unauthenticated:
			afterwards = "passed on"
		}
		want += fmt.Sprintf("| %s | %s | %s | %s |\n", r.Name, r.Class.Tier, r.Class.Type, afterwards)
	}
	if section == want {
		return
	}
	if !*write {
		t.Fatalf("errors.md is not as the code (go test ./docs -args -write): got\n%s\nwant\n%s", section, want)
	}
	if err := os.WriteFile("errors.md", []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
