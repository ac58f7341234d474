package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

// maxCellBytes bounds one cell of a table.
const maxCellBytes = 1024

func printVolumes(w io.Writer, output string, volumes []*adminpb.Volume) error {
	if !isText(output) {
		all := make([]json.RawMessage, 0, len(volumes))
		for _, v := range volumes {
			one, err := encode(v)
			if err != nil {
				return err
			}
			all = append(all, one)
		}
		return printData(w, output, all)
	}
	var verdicts []string
	for _, v := range volumes {
		verdicts = append(verdicts, v.GetVerdict())
	}
	return sickInColour(w, verdicts, func(w io.Writer) error { return volumeTable(w, output == asWide, volumes) })
}

func volumeTable(w io.Writer, wide bool, volumes []*adminpb.Volume) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	columns := []string{"DRIVER", "VOLUME-ID", "PV", "POD", "PUBLISHED", "STAGED", "HEALTH"}
	if wide {
		columns = append(columns, "CLAIM", "CHECKED", "DUE", "TRIES", "PATHS")
	}
	row(table, columns...)
	for _, v := range volumes {
		var mounted, published, staged int
		for _, p := range v.GetPaths() {
			switch {
			case p.GetStaging():
				staged++
			case p.GetMounted():
				mounted++
				published++
			default:
				published++
			}
		}
		more := ""
		if v.GetOmitted() > 0 {
			more = "+"
		}
		pod := strings.Join(v.GetPods(), " ")
		if n := len(v.GetPods()); n > 1 && !wide {
			pod = fmt.Sprintf("%s +%d", v.GetPods()[0], n-1)
		}
		cells := []string{v.GetDriver(), v.GetVolumeId(), v.GetPv(), pod, fmt.Sprintf("%d/%d%s", mounted, published, more), strconv.Itoa(staged) + more, health(v) + age(v)}
		if wide {
			cells = append(cells, v.GetClaim(), when(v.GetChecked()), when(v.GetDue()), strconv.Itoa(int(v.GetTries())), paths(v))
		}
		row(table, cells...)
	}
	return table.Flush()
}

// age says how old an answer is that nothing renews.
func age(v *adminpb.Volume) string {
	if v.GetChecked() == nil || v.GetDue() != nil {
		return ""
	}
	return ", " + duration.HumanDuration(time.Since(v.GetChecked().AsTime())) + " ago"
}

// when returns a time of the answer; empty for none.
func when(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339)
}

func paths(v *adminpb.Volume) string {
	var all []string
	for _, p := range v.GetPaths() {
		all = append(all, p.GetPath())
	}
	return strings.Join(all, " ")
}

func printReport(w io.Writer, output string, r *adminpb.VolumeReport) error {
	if !isText(output) {
		one, err := encode(r)
		if err != nil {
			return err
		}
		return printData(w, output, one)
	}
	head := printable.Line(r.GetVerdict()+": "+r.GetVolumeId(), maxCellBytes)
	if _, err := fmt.Fprintln(w, painted(w, r.GetVerdict(), head)); err != nil {
		return err
	}
	return printLabelled(w, reportLines(r, output == asWide))
}

// labelled are lines of text with one label in front of the first.
type labelled struct {
	label string
	lines []string
}

// printLabelled leaves out labels without a line.
func printLabelled(w io.Writer, all []labelled) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, l := range all {
		for i, line := range slices.DeleteFunc(l.lines, func(line string) bool { return line == "" }) {
			if i > 0 {
				l.label = ""
			}
			_, _ = fmt.Fprintf(table, "  %s\t%s\n", l.label, printable.Line(line, maxCellBytes))
		}
	}
	return table.Flush() // returns what went wrong before, too
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

// row writes one line. What comes from the node may hold anything that a terminal obeys.
// The Flush of the table returns what went wrong.
func row(w io.Writer, cells ...string) {
	for i, c := range cells {
		if cells[i] = printable.Line(c, maxCellBytes); cells[i] == "" {
			cells[i] = "-"
		}
	}
	_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
}

func encode(m proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(m)
}

func printData(w io.Writer, output string, data any) error {
	text, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return err
	}
	safe := escaped(string(text), output)
	// The YAML writer does not quote all that a terminal may obey; JSON is YAML, too.
	if output == asJSON || safe != string(text) {
		_, err = fmt.Fprintln(w, safe)
		return err
	}
	if text, err = yaml.JSONToYAML(text); err == nil {
		_, err = w.Write(text)
	}
	return err
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
