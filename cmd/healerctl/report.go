package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

func printReport(w io.Writer, wide bool, r *adminpb.VolumeReport) error {
	head := printable.Line(r.GetVerdict()+": "+r.GetVolumeId(), maxCellBytes)
	if _, err := fmt.Fprintln(w, painted(w, r.GetVerdict(), head)); err != nil {
		return err
	}
	return printLabelled(w, reportLines(r, wide))
}

// reportLines says which volume it is, what is wrong with it, what was done and what a person
// does, in the words of NodeHealer's message.
func reportLines(r *adminpb.VolumeReport, wide bool) []labelled {
	at := func(place, path string) string {
		if wide && !strings.Contains(place, path) {
			return place + " " + path
		}
		return place
	}
	conditions := func(all []*adminpb.Condition) (lines []string) {
		for _, c := range all {
			line := at(c.GetPlace(), c.GetMountPoint()) + ": " + c.GetReason() + inBrackets(c.GetMessage())
			if wide {
				line += ", " + c.GetStatus()
			}
			lines = append(lines, line)
		}
		return lines
	}
	found, now := conditions(r.GetBefore()), conditions(r.GetConditions())
	switch {
	case len(found) == 0:
		found, now = now, nil
	case slices.Equal(found, now):
		now = []string{"the same"}
	}
	var tried, wouldTry, refused, todo, loop, omitted []string
	for _, o := range r.GetOutcomes() {
		line := o.GetStep() + " of " + at(o.GetPlace(), o.GetMountPoint())
		if o.GetError() != "" {
			line += " failed" + inBrackets(o.GetError()) + ", " + o.GetTier() + ", " + o.GetErrorType()
		}
		tried = append(tried, line+inBrackets(o.GetNote()))
	}
	for _, s := range r.GetSteps() {
		line := s.GetStep() + " of " + at(s.GetPlace(), s.GetMountPoint())
		if s.GetRefused() == "" {
			wouldTry = append(wouldTry, line)
		} else {
			refused = append(refused, line+inBrackets(s.GetRefused()))
		}
	}
	for i, advice := range r.GetAdvice() {
		todo = append(todo, fmt.Sprintf("%d. %s", i+1, advice))
	}
	if r.GetLoopError() != "" {
		loop = []string{"its last error: " + r.GetLoopError()}
	}
	if r.GetOmitted() > 0 {
		omitted = []string{fmt.Sprintf("%d more lines", r.GetOmitted())}
	}
	return []labelled{
		{"driver", []string{r.GetDriver()}},
		{"pv", []string{r.GetPv()}},
		{"claim", []string{r.GetClaim()}},
		{"pods", r.GetPods()},
		{"found", found},
		{"tried", tried},
		{"now", now},
		{"would try", wouldTry},
		{"refused", refused},
		{"to do", todo},
		{"note", r.GetNotes()},
		{"loop", loop},
		{"not listed", omitted},
	}
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}
