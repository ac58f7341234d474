package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf16"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/internal/printable"
)

// maxCellBytes bounds one cell of a table.
const maxCellBytes = 1024

// The values of --output.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
)

// outputFlag adds --output, which takes further values of this command, too.
func outputFlag(c *cobra.Command, further ...string) (output *string) {
	values := slices.Concat([]string{asTable}, further, []string{asJSON, asYAML})
	last := len(values) - 1
	all := func(and string) string { return strings.Join(values[:last], ", ") + and + values[last] }
	output = c.Flags().StringP("output", "o", asTable, all(" or "))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	c.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(values, *output) {
			return usage("--output: %q is none of %s", *output, all(" and "))
		}
		return nil
	}
	return output
}

// answer prints what a command found: as text for people, as data for programs.
func answer(c *cobra.Command, output string, data any, text func(io.Writer) error) error {
	if output == asTable || output == asWide {
		return text(c.OutOrStdout())
	}
	raw, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return err
	}
	safe := escaped(string(raw), output)
	// The YAML writer does not quote all that a terminal may obey; JSON is YAML, too.
	if output == asJSON || safe != string(raw) {
		_, err = fmt.Fprintln(c.OutOrStdout(), safe)
		return err
	}
	if raw, err = yaml.JSONToYAML(raw); err == nil {
		_, err = c.OutOrStdout().Write(raw)
	}
	return err
}

// message is a message of the server's as data.
type message struct{ proto.Message }

func (m message) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(m.Message)
}

// escaped returns JSON in which whatever a terminal may obey is an escape sequence:
// encoding/json writes C1 controls and DEL as they are. Beyond the first plane YAML has a
// sequence of its own, and does not take JSON's two (YAML 1.2, 5.7).
func escaped(text, output string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < 0x7f || strconv.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case output == asYAML:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return b.String()
}

// table is text in columns. What comes from a node may hold anything that a terminal obeys.
type table struct {
	// columns is how many are printed; 0: all.
	columns  int
	rows     [][]string
	verdicts []string
}

// row adds a row. One with a verdict is coloured unless it is healthy, so that the sick stand out.
func (t *table) row(verdict string, cells ...string) {
	for i, c := range cells {
		if cells[i] = printable.Line(c, maxCellBytes); cells[i] == "" {
			cells[i] = "-"
		}
	}
	t.rows, t.verdicts = append(t.rows, cells), append(t.verdicts, verdict)
}

func (t *table) print(w io.Writer) error {
	var text bytes.Buffer
	columns := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	for _, cells := range t.rows {
		if t.columns > 0 {
			cells = cells[:t.columns]
		}
		_, _ = fmt.Fprintln(columns, strings.Join(cells, "\t"))
	}
	_ = columns.Flush() // a buffer takes all
	for _, verdict := range t.verdicts {
		line, _ := text.ReadString('\n')
		line = strings.TrimSuffix(line, "\n")
		if verdict != "" && verdict != "healthy" {
			line = painted(w, verdict, line)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// labelled adds lines of text, those that are not empty, with one label in front of the first.
func (t *table) labelled(label string, lines ...string) {
	for _, line := range lines {
		if line != "" {
			t.row("", "  "+label, line)
			label = ""
		}
	}
}
