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

What was shown on which kernel. This page is written from the results of the tests that ` + "`test/kernels/features.go`" + ` names, run on each kernel of Debian's cloud images in QEMU (no KVM needed), and on the machine itself. ` + "`make kernels-short`" + `, a part of ` + "`make test`" + `, runs each heal and each condition once again on Debian's kernels, and fails if a result differs.

By the system calls it makes, a heal needs Linux 5.14. What older kernels lack:

- Below 6.15 an ext4 that shut itself down is found only by fsync(2) of its root directory. That writes nothing on a clean filesystem, but is allowed like a write: with --mode=check, or where no write may be tried, it passes as healthy.
- Below 6.15 mounts inside a container's dead mount cannot be brought along: such containers are left alone.
- Below 6.13 statmount does not tell sources: the mount table is read from mountinfo, several times for each call.
- Below 6.9 a filesystem's UUID is read by an ioctl of ext4 (6.0), xfs or btrfs. Below 6.0 an ext4 on a disk without serial number, WWID and device-mapper UUID is never healed.
- Below 6.8 mounts have no unique ids: each check asks for everything and walks over all processes; a volume without a device and without a telling source (tmpfs) is never rebound; a container's mount is proven only while the host has the same filesystem instance.
- Below 6.5 a dead FUSE mount (ENOTCONN) is covered by the new one instead of replaced, on the host and in containers; any other dead mount is reported (ReplaceNotSupported).

A virtio disk's serial number is read on no kernel, because that asks the device. What sysfs has of NVMe is laid out for the tests as the kernel's source makes it. A test asks the kernel for what it needs; without it the test skips, and on the machine itself fails with CI=true.

"yes": the tests passed. "no": they fail. A number: they do not run there, for the reason below the table.

`

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
	fmt.Fprintf(&page, "| | %s |\n|---|%s\n", strings.Join(t.kernels, " | "), strings.Repeat("---|", len(t.kernels)))
	var reasons []string
	for _, f := range features {
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
	return t, nil
}
