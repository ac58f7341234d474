package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

// printReport says which volume it is, what is wrong with it, what was done and what a person
// does, in the words of NodeHealer's message.
func printReport(w io.Writer, wide bool, r *adminpb.VolumeReport) error {
	head := printable.Line(r.GetVerdict()+": "+r.GetVolumeId(), maxCellBytes)
	if _, err := fmt.Fprintln(w, painted(w, r.GetVerdict(), head)); err != nil {
		return err
	}
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
	var tried, wouldTry, refused, todo []string
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
	var t table
	t.labelled("driver", r.GetDriver())
	t.labelled("pv", r.GetPv())
	t.labelled("claim", r.GetClaim())
	t.labelled("pods", r.GetPods()...)
	t.labelled("found", found...)
	t.labelled("tried", tried...)
	t.labelled("now", now...)
	t.labelled("would try", wouldTry...)
	t.labelled("refused", refused...)
	t.labelled("to do", todo...)
	t.labelled("note", r.GetNotes()...)
	if r.GetLoopError() != "" {
		t.labelled("loop", "its last error: "+r.GetLoopError())
	}
	if r.GetOmitted() > 0 {
		t.labelled("not listed", fmt.Sprintf("%d more lines", r.GetOmitted()))
	}
	return t.print(w)
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}
