package kernels

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// tableHead is what docs/kernels.md says before the table.
const tableHead = `# Kernels

What the tests of ` + "`test/kernels/features.go`" + ` showed on each kernel. ` + "`make kernels`" + ` writes this page, ` + "`make kernels-short`" + ` compares.

A heal needs Linux 5.14. What older kernels lack:

- Below 6.16 nobody can tell which daemon serves a FUSE connection: DaemonGone, DaemonStopped and ` + "`abort-connection`" + ` are not there, and ` + "`restage`" + ` is refused while any other process has a FUSE device open.
- Below 6.15 an ext4 that shut itself down is found only by fsync(2) of its root: not in a check or a dry run, nor where no write may be tried.
- Below 6.15 mounts inside a container's dead mount cannot be brought along: such containers are left alone.
- Below 6.13 the mount table is read several times for each call.
- Below 6.0 an ext4 on a disk without serial number, WWID and device-mapper UUID is never healed. Such are virtio's (reading serial numbers asks them), GCE's NVMe, Proxmox's and Longhorn's.
- Below 6.8 mounts have no unique ids: each check walks over all processes; tmpfs is never rebound; a container's mount is proven only while the host has the same filesystem instance.
- Below 6.5 a dead FUSE mount (ENOTCONN) is covered by the new one instead of replaced; any other dead mount is reported (ReplaceNotSupported).

`

// everywhere precedes the features that each kernel has, and elsewhere the table of the others.
const (
	everywhere = "The tests passed on each of them for:\n"
	elsewhere  = "\nElsewhere \"no\" is a test that fails, and a number one that does not run there, for the reason below the table.\n\n"
)

// table is docs/kernels.md: a cell for each feature and kernel.
type table struct {
	kernels []string
	// cells are by feature and kernel: yes, no, or why it was not run.
	cells map[string]map[string]string
}

func newTable(kernels []string) table {
	t := table{kernels: kernels, cells: map[string]map[string]string{}}
	for _, f := range features {
		t.cells[f.name] = map[string]string{}
	}
	return t
}

const (
	yes = "yes"
	no  = "no"
)

// add puts in what the tests on a kernel did.
func (t table) add(kernel string, r *results) {
	for _, f := range features {
		t.cells[f.name][kernel] = r.cell(f)
	}
}

// cell says how a feature did.
func (r *results) cell(f feature) string {
	cell := yes
	for _, name := range f.tests {
		switch one := r.byName[name]; {
		case one == nil || one.outcome != "PASS" && one.outcome != "SKIP":
			return no
		case one.outcome == "SKIP":
			cell = one.reason()
		}
	}
	return cell
}

var skipped = regexp.MustCompile(`\.go:\d+: (.*)`)

// reason is what a test that skipped said.
func (o *result) reason() string {
	if m := skipped.FindStringSubmatch(o.output.String()); m != nil {
		return m[1]
	}
	return "skipped"
}

// String is the page.
func (t table) String() string {
	var page strings.Builder
	page.WriteString(tableHead)
	page.WriteString(everywhere + "\n")
	for _, f := range features {
		if t.everywhere(f) {
			fmt.Fprintf(&page, "- %s\n", f.name)
		}
	}
	page.WriteString(elsewhere)
	fmt.Fprintf(&page, "| | %s |\n|---|%s\n", strings.Join(t.kernels, " | "), strings.Repeat("---|", len(t.kernels)))
	var reasons []string
	for _, f := range features {
		if t.everywhere(f) {
			continue
		}
		fmt.Fprintf(&page, "| %s |", f.name)
		for _, kernel := range t.kernels {
			cell := t.cells[f.name][kernel]
			if cell != yes && cell != no {
				if !slices.Contains(reasons, cell) {
					reasons = append(reasons, cell)
				}
				cell = fmt.Sprint(slices.Index(reasons, cell) + 1)
			}
			fmt.Fprintf(&page, " %s |", cell)
		}
		page.WriteString("\n")
	}
	page.WriteString("\n")
	for i, reason := range reasons {
		fmt.Fprintf(&page, "%d. %s\n", i+1, reason)
	}
	return page.String()
}

// everywhere reports whether a feature's tests passed on each kernel.
func (t table) everywhere(f feature) bool {
	return !slices.ContainsFunc(t.kernels, func(kernel string) bool { return t.cells[f.name][kernel] != yes })
}

// readTable reads the page.
func readTable(path string) (table, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return table{}, err
	}
	t := table{cells: map[string]map[string]string{}}
	var reasons []string
	for line := range strings.Lines(string(raw)) {
		if n, reason, ok := strings.Cut(strings.TrimSpace(line), ". "); ok && n == fmt.Sprint(len(reasons)+1) {
			reasons = append(reasons, reason)
		}
	}
	_, list, _ := strings.Cut(string(raw), everywhere)
	list, _, _ = strings.Cut(list, elsewhere)
	for line := range strings.Lines(string(raw)) {
		row := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---"):
		case t.kernels == nil:
			for _, kernel := range row[1:] {
				t.kernels = append(t.kernels, strings.TrimSpace(kernel))
			}
		case len(row) != len(t.kernels)+1:
			return t, fmt.Errorf("%s: %d cells in %q", path, len(row), line)
		default:
			cells := map[string]string{}
			for i, kernel := range t.kernels {
				cell := strings.TrimSpace(row[i+1])
				for n, reason := range reasons {
					if cell == fmt.Sprint(n+1) {
						cell = reason
					}
				}
				cells[kernel] = cell
			}
			t.cells[strings.TrimSpace(row[0])] = cells
		}
	}
	for line := range strings.Lines(list) {
		if name, is := strings.CutPrefix(strings.TrimSpace(line), "- "); is {
			t.cells[name] = map[string]string{}
			for _, kernel := range t.kernels {
				t.cells[name][kernel] = yes
			}
		}
	}
	return t, nil
}
