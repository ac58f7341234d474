package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csi-addons/node-healer/docs"
	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

// newExplain returns the command that prints what is in the pages docs/conditions.md and
// docs/controller.md of its own version, and asks the node's server for what is not: a
// vendor's providers say it.
func newExplain(dial dialer) *cobra.Command {
	page := docs.Conditions + "\n" + docs.Controller
	return &cobra.Command{
		Use:   "explain REASON",
		Short: "Say what a condition, a step or an event means, and what a person does",
		Args:  cobra.ExactArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, begun string) (fit []string, _ cobra.ShellCompDirective) {
			for _, name := range names(page) {
				if len(args) == 0 && strings.HasPrefix(name, begun) {
					fit = append(fit, name)
				}
			}
			return fit, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			rows := rowsOf(page, args[0])
			if len(rows) == 0 {
				return explainOther(cmd, dial, args[0], names(page))
			}
			for _, row := range rows {
				row.print(cmd.OutOrStdout())
			}
			if linked := rows[0].anchor(); linked != "" {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), api.ConditionsURL+linked)
			}
			return nil
		},
	}
}

// meant names what a person may have mistyped; cobra compares words for its commands.
func meant(typed string, names []string) string {
	all := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range names {
		all.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	if near := all.SuggestionsFor(typed); len(near) > 0 {
		return " (did you mean " + strings.Join(near, " or ") + "?)"
	}
	return ""
}

// explainOther prints what the node's server says of a condition; known are the names that
// need no server. An older server, or none, has nothing to add.
func explainOther(cmd *cobra.Command, dial dialer, name string, known []string) error {
	found := false
	err := dial(func(client adminpb.AdminClient) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), reachTimeout)
		defer cancel()
		said, err := client.Explain(ctx, &adminpb.ExplainRequest{})
		for _, c := range said.GetConditions() {
			known = append(known, c.GetReason())
			if strings.EqualFold(c.GetReason(), name) {
				found = true
				entry{
					[]string{"reason", "status", "message", "advice"},
					[]string{c.GetReason(), c.GetStatus(), c.GetMessage(), c.GetAdvice()},
				}.print(cmd.OutOrStdout())
			}
		}
		if err != nil {
			return callError{err}
		}
		return nil
	})
	if found {
		return nil
	}
	asked := ""
	if err != nil {
		asked = " (the node's server was not asked for others: " + printable.Line(wording(err), maxCellBytes) + ")"
	}
	return fmt.Errorf("%s is no condition, step or event%s; they are: %s%s", printable.Name(name), meant(name, known), strings.Join(known, ", "), asked)
}

// entry is one row of a table in Markdown, with the names of its columns.
type entry struct{ columns, cells []string }

func (r entry) print(w io.Writer) {
	_, _ = fmt.Fprintln(w, plain(r.cells[0]))
	for i, cell := range r.cells[1:] {
		_, _ = fmt.Fprintf(w, "  %s: %s\n", plain(r.columns[i+1]), plain(cell))
	}
}

// name is the first cell up to a mark behind it.
func (r entry) name() string {
	name, _, _ := strings.Cut(strings.Trim(plain(r.cells[0]), " "), " ")
	return name
}

// anchor is the name by which a link finds the row; empty in controller.md.
func (r entry) anchor() string {
	if m := anchor.FindStringSubmatch(r.cells[0]); m != nil {
		return m[1]
	}
	return ""
}

// tables returns the rows of all tables whose first column is reason or step.
func tables(page string) (rows []entry) {
	var columns []string
	for line := range strings.Lines(page) {
		cells := cellsOf(line)
		switch {
		case cells == nil:
			columns = nil
		case columns == nil:
			columns = cells
		case strings.HasPrefix(cells[0], "---"), len(cells) != len(columns), columns[0] != "reason" && columns[0] != "step":
		default:
			rows = append(rows, entry{columns, cells})
		}
	}
	return rows
}

// cellsOf returns the cells of a table's line; nil for another line.
func cellsOf(line string) []string {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "|") || !strings.HasSuffix(line, "|") || len(line) < 2 {
		return nil
	}
	cells := strings.Split(line[1:len(line)-1], "|")
	for i, c := range cells {
		cells[i] = strings.TrimSpace(c)
	}
	return cells
}

func rowsOf(page, name string) []entry {
	return slices.DeleteFunc(tables(page), func(r entry) bool { return !strings.EqualFold(r.name(), name) })
}

func names(page string) (all []string) {
	for _, r := range tables(page) {
		all = append(all, r.name())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var (
	// link is a link in Markdown.
	link = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	// anchor is before the name of a reason or step.
	anchor = regexp.MustCompile(`<a id="([^"]*)"></a>`)
)

// plain returns Markdown as a person reads it on a terminal.
func plain(text string) string {
	return strings.NewReplacer("`", "", "**", "", `(\*)`, "(*)", "&lt;", "<").Replace(anchor.ReplaceAllString(link.ReplaceAllString(text, "$1"), ""))
}
