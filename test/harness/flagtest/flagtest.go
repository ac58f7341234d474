// Package flagtest tests a command's flags: what they are parsed into, which rules
// they are held to, and that docs/flags.md is made from them.
package flagtest

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
)

// write has Docs write the page instead of comparing with it.
var write = flag.Bool("write", false, "write docs/flags.md anew")

// Parse is a command's parser: arguments in, configuration or all mistakes out.
type Parse[C any] func(args []string, out io.Writer) (C, error)

// Config checks what a command line is parsed into.
func Config[C any](t *testing.T, parse Parse[C], args string, want C) {
	t.Helper()
	if got, err := parse(strings.Fields(args), io.Discard); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

// Rules checks command lines, each with what its error names; empty: it is accepted.
func Rules[C any](t *testing.T, parse Parse[C], rules [][2]string) {
	t.Helper()
	for _, r := range rules {
		args, named := r[0], r[1]
		_, err := parse(strings.Fields(args), io.Discard)
		switch {
		case named == "" && err != nil:
			t.Errorf("%q: %v", args, err)
		case named != "" && err == nil:
			t.Errorf("%q: accepted", args)
		case named != "" && !strings.Contains(err.Error(), named):
			t.Errorf("%q: %v does not name %s", args, err, named)
		}
	}
}

// Help checks that --help explains every flag and is no mistake.
func Help[C any](t *testing.T, parse Parse[C], flags *flag.FlagSet) {
	t.Helper()
	var out strings.Builder
	if _, err := parse([]string{"--help"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	flags.VisitAll(func(f *flag.Flag) {
		if !strings.Contains(out.String(), "  -"+f.Name) || f.Usage == "" {
			t.Errorf("-%s is not explained", f.Name)
		}
	})
}

// Docs checks that the command's section of docs/flags.md has a line for each flag as
// the code has it, and no other. `go test -p 1 ./cmd/... ./pkg/app -args -write` writes it.
func Docs(t *testing.T, flags *flag.FlagSet) {
	t.Helper()
	const page = "../../docs/flags.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin := fmt.Sprintf("<!-- %s: made by `go test -p 1 ./cmd/... ./pkg/app -args -write` -->\n", flags.Name())
	before, rest, found := strings.Cut(string(text), begin)
	const end = "<!-- end -->\n"
	section, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no section for %s", page, flags.Name())
	}
	want := table(flags)
	if section == want {
		return
	}
	if !*write {
		t.Fatalf("%s is not as the flags of %s are: go test -p 1 ./cmd/... ./pkg/app -args -write\ngot\n%s\nwant\n%s", page, flags.Name(), section, want)
	}
	if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// table returns a line for each flag, with its default and its meaning.
func table(flags *flag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *flag.Flag) {
		name, value := "--"+f.Name, strings.Replace(f.DefValue, "m0s", "m", 1)
		if len(f.Name) == 1 {
			name = "-" + f.Name
		}
		if value == "false" {
			value = ""
		}
		if value != "" {
			value = " (`" + value + "`)"
		}
		_, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(&b, "- `%s`%s: %s\n", name, value, usage)
	})
	return b.String()
}
