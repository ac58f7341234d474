package main

import (
	"context"
	"fmt"
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
	all := entries(docs.Conditions + "\n" + docs.Controller)
	return &cobra.Command{
		Use:   "explain REASON",
		Short: "Say what a condition, a step or an event means, and what a person does",
		Args:  takes(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			fit := slices.DeleteFunc(names(all), func(name string) bool { return len(args) > 0 || !strings.HasPrefix(name, begun) })
			return fit, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			found, asked := namesake(all, args[0]), error(nil)
			if len(found) == 0 {
				var others []entry
				others, asked = vendors(c.Context(), dial)
				found, all = namesake(others, args[0]), append(all, others...)
			}
			if len(found) == 0 {
				return unexplained(args[0], names(all), asked)
			}
			for _, e := range found {
				_, _ = fmt.Fprintln(c.OutOrStdout(), plain(e.cells[0]))
				for i, cell := range e.cells[1:] {
					_, _ = fmt.Fprintf(c.OutOrStdout(), "  %s: %s\n", plain(e.columns[i+1]), plain(cell))
				}
			}
			if linked := found[0].anchor; linked != "" {
				_, _ = fmt.Fprintln(c.OutOrStdout(), api.ConditionsURL+linked)
			}
			return nil
		},
	}
}

// vendors asks the node's server for the conditions of its providers. An older server, or none,
// has nothing to add.
func vendors(ctx context.Context, dial dialer) (all []entry, err error) {
	err = dial(func(client adminpb.AdminClient) error {
		ctx, cancel := context.WithTimeout(ctx, reachTimeout)
		defer cancel()
		said, err := client.Explain(ctx, &adminpb.ExplainRequest{})
		for _, c := range said.GetConditions() {
			cells := []string{c.GetReason(), c.GetStatus(), c.GetMessage(), c.GetAdvice()}
			for i := range cells { // a terminal must not obey them
				cells[i] = printable.Line(cells[i], maxCellBytes)
			}
			all = append(all, entry{name: cells[0], columns: []string{"reason", "status", "message", "advice"}, cells: cells})
		}
		return err
	})
	return all, err
}

// unexplained says what a person may have mistyped; cobra compares words for its commands.
func unexplained(typed string, known []string, asked error) error {
	words := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range known {
		words.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	near, server := "", ""
	if meant := words.SuggestionsFor(typed); len(meant) > 0 {
		near = " (did you mean " + strings.Join(meant, " or ") + "?)"
	}
	if asked != nil {
		server = " (the node's server was not asked for others: " + printable.Line(wording(asked), maxCellBytes) + ")"
	}
	return usage("%s is no condition, step or event%s; they are: %s%s", printable.Name(typed), near, strings.Join(known, ", "), server)
}

// entry is what is said of one reason or step: a row of a table in Markdown, with the names of its
// columns. The name is the first cell up to a mark behind it; by the anchor a link finds the row,
// if it has one.
type entry struct {
	name, anchor   string
	columns, cells []string
}

// entries returns the rows of all tables whose first column is reason or step.
func entries(page string) (all []entry) {
	var columns []string
	for line := range strings.Lines(page) {
		row, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
		cells := strings.Split(strings.TrimSuffix(row, "|"), "|")
		for i, cell := range cells {
			cells[i] = strings.TrimSpace(cell)
		}
		switch {
		case !isRow:
			columns = nil
		case columns == nil:
			columns = cells
		case len(cells) != len(columns), columns[0] != "reason" && columns[0] != "step", strings.HasPrefix(cells[0], "---"):
		default:
			e := entry{columns: columns, cells: cells}
			e.name, _, _ = strings.Cut(strings.TrimSpace(plain(cells[0])), " ")
			if m := anchor.FindStringSubmatch(cells[0]); m != nil {
				e.anchor = m[1]
			}
			all = append(all, e)
		}
	}
	return all
}

func namesake(all []entry, name string) (found []entry) {
	for _, e := range all {
		if strings.EqualFold(e.name, name) {
			found = append(found, e)
		}
	}
	return found
}

func names(all []entry) (sorted []string) {
	for _, e := range all {
		sorted = append(sorted, e.name)
	}
	slices.Sort(sorted)
	return slices.Compact(sorted)
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
