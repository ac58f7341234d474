package docs

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/internal/gateway"
	"github.com/csi-addons/node-healer/internal/retry"
	"github.com/csi-addons/node-healer/pkg/bucket"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

var write = flag.Bool("write", false, "write the tables in errors.md anew")

// TestErrorsPage compares the tables of errors with those in the code.
func TestErrorsPage(t *testing.T) {
	page := read(t, "errors.md")
	tables := map[string]string{
		"statuses": statusTable(), "gateway": gatewayTable(), "conditions": conditionTable(), "own": ownTable(), "errnos": errnoTable(),
		"driver": driverTable(), "schedules": scheduleTable(), "buckets": bucketTable(), "cosi": cosiTable(),
	}
	for name, table := range tables {
		begin, end := "<!-- "+name+": made by `go test ./docs -args -write` -->\n", "<!-- end -->\n"
		before, rest, found := strings.Cut(page, begin)
		section, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("errors.md has no table %s", name)
		}
		if section != table && !*write {
			t.Errorf("errors.md is not as the code (go test ./docs -args -write): got\n%s\nwant\n%s", section, table)
		}
		page = before + begin + table + end + after
	}
	if *write {
		if err := os.WriteFile("errors.md", []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func statusTable() string {
	table := "| code | reason | tier | type |\n|---|---|---|---|\n"
	for _, r := range nodeserver.ErrorRows() {
		name := rpccode.Code(r.Code).String()
		tier, kind := cmp.Or(string(r.Class.Tier), "of the cause"), cmp.Or(string(r.Class.Type), "of the cause")
		table += fmt.Sprintf("| %s | %s | %s | %s |\n", name, r.Reason, tier, kind)
	}
	return table
}

func gatewayTable() string {
	table := "| code | reason | tier | type | when |\n|---|---|---|---|---|\n"
	for _, r := range gateway.StatusRows() {
		name := rpccode.Code(r.Code).String()
		table += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", name, r.Reason, r.Class.Tier, r.Class.Type, r.When)
	}
	return table
}

func conditionTable() string {
	table := "| errno | operation | filesystem | condition | perhaps beside it |\n|---|---|---|---|---|\n"
	for _, r := range healer.ConditionRows() {
		var names, beside []string
		for _, e := range r.Errnos {
			names = append(names, unix.ErrnoName(e))
		}
		for _, b := range r.Beside {
			beside = append(beside, string(b))
		}
		table += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", cmp.Or(strings.Join(names, ", "), "any other"), cmp.Or(r.Op, "any"), cmp.Or(r.Filesystem, "any"),
			r.Reason, strings.Join(beside, ", "))
	}
	return table
}

func ownTable() string {
	table := "| what | tier | type |\n|---|---|---|\n"
	for _, r := range healer.OwnRows() {
		table += fmt.Sprintf("| %s | %s | %s |\n", r.What, r.Class.Tier, r.Class.Type)
	}
	return table
}

func errnoTable() string {
	table := "| errno | tier | type |\n|---|---|---|\n"
	var rows [][2]string
	for _, r := range healer.ErrnoRows() {
		for _, errno := range r.Errnos {
			rows = append(rows, [2]string{unix.ErrnoName(errno), fmt.Sprintf("%s | %s", r.Class.Tier, r.Class.Type)})
		}
	}
	other := healer.Classify(unix.EXDEV)
	return table + joined(append(rows, [2]string{"any other", fmt.Sprintf("%s | %s", other.Tier, other.Type)}))
}

// joined writes rows of a first cell and the rest; neighbours with the same rest are one.
func joined(rows [][2]string) string {
	table := ""
	for i := 0; i < len(rows); {
		names, rest := rows[i][0], rows[i][1]
		for i++; i < len(rows) && rows[i][1] == rest; i++ {
			names += ", " + rows[i][0]
		}
		table += fmt.Sprintf("| %s | %s |\n", names, rest)
	}
	return table
}

func scheduleTable() string {
	table := "| what is tried again | first after | at most |\n|---|---|---|\n"
	for _, s := range retry.Schedules() {
		table += fmt.Sprintf("| %s | %s | %s |\n", s.What, s.First, s.Max)
	}
	return table
}

func bucketTable() string {
	table := "| answer | condition | status | tier | type | counts if said again after |\n|---|---|---|---|---|---|\n"
	for _, r := range bucket.Rows() {
		answers := slices.Clone(r.Codes)
		for _, status := range r.Statuses {
			answers = append(answers, strconv.Itoa(status))
		}
		text, confirm := strings.Join(answers, ", "), ""
		if r.OtherRegion {
			text += ", and another region in the header or in the answer"
		}
		if r.Confirm > 0 {
			confirm = r.Confirm.String()
		}
		table += fmt.Sprintf("| %s | %s | %s | %s | %s | %s |\n", text, cmp.Or(string(r.Condition.Reason), "none: healthy"), r.Condition.Status, r.Condition.Tier, r.Condition.Type, confirm)
	}
	return table + "| any other | none: not judged | | | | |\n"
}

func cosiTable() string {
	words := map[bool]string{true: "tried again", false: "given up"}
	table := "| code | call | by the specification | by the stricter proposal |\n|---|---|---|---|\n"
	for _, c := range bucket.COSICodes() {
		table += fmt.Sprintf("| %s | %s | %s | %s |\n", c.Code, cmp.Or(c.Call, "any"), words[c.Retried], words[c.RetriedStrictly])
	}
	return table
}

func driverTable() string {
	table := "| code | tier | type | afterwards |\n|---|---|---|---|\n"
	var rows [][2]string
	for _, r := range driver.Rows() {
		for _, code := range r.Codes {
			afterwards := ""
			switch {
			case r.Pending():
				afterwards = "stops"
			case code == codes.Unimplemented:
				afterwards = "remembered"
			case code == codes.Unauthenticated:
				afterwards = "passed on"
			}
			rows = append(rows, [2]string{rpccode.Code(code).String(), fmt.Sprintf("%s | %s | %s", r.Class.Tier, r.Class.Type, afterwards)})
		}
	}
	return table + joined(rows)
}
