package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

// maxCellBytes bounds one cell of a table.
const maxCellBytes = 1024

func printVolumes(w io.Writer, output string, volumes []*adminpb.Volume) error {
	if output != asTable && output != asWide {
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
	columns := []string{"DRIVER", "VOLUME-ID", "PUBLISHED", "STAGED", "HEALTH"}
	if wide {
		columns = append(columns, "CHECKED", "DUE", "TRIES", "PATHS")
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
		cells := []string{v.GetDriver(), v.GetVolumeId(), fmt.Sprintf("%d/%d%s", mounted, published, more), strconv.Itoa(staged) + more, health(v)}
		if wide {
			cells = append(cells, when(v.GetChecked()), when(v.GetDue()), strconv.Itoa(int(v.GetTries())), paths(v))
		}
		row(table, cells...)
	}
	return table.Flush()
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
	if output != asTable {
		one, err := encode(r)
		if err != nil {
			return err
		}
		return printData(w, output, one)
	}
	if _, err := fmt.Fprintln(w, painted(w, r.GetVerdict(), printable.Line(r.GetMessage(), maxCellBytes))); err != nil {
		return err
	}
	if err := printFailed(w, r.GetOutcomes()); err != nil {
		return err
	}
	if len(r.GetSteps()) > 0 {
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		row(table, "STEP", "COST", "MOUNT-POINT", "REFUSED")
		for _, s := range r.GetSteps() {
			row(table, s.GetStep(), s.GetCost(), s.GetMountPoint(), s.GetRefused())
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if r.GetLoopError() != "" {
		if _, err := fmt.Fprintln(w, "The last error of the node's own loop:", printable.Line(r.GetLoopError(), maxCellBytes)); err != nil {
			return err
		}
	}
	if r.GetOmitted() > 0 {
		_, err := fmt.Fprintf(w, "%d more conditions and steps are not listed\n", r.GetOmitted())
		return err
	}
	return nil
}

// printFailed lists the steps that failed, with the class of their errors; the message
// has all that was done.
func printFailed(w io.Writer, outcomes []*adminpb.Outcome) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	head := []string{"FAILED", "MOUNT-POINT", "TIER", "ERROR-TYPE", "ERROR"}
	for _, o := range outcomes {
		if o.GetError() == "" {
			continue
		}
		if head != nil {
			row(table, head...)
			head = nil
		}
		row(table, o.GetStep(), o.GetMountPoint(), o.GetTier(), o.GetErrorType(), o.GetError())
	}
	return table.Flush()
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
