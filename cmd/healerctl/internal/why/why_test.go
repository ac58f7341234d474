package why

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOrderHasEveryReason: what is not in the order would come before the worst.
func TestOrderHasEveryReason(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:add\(|reason :?= |&Cause\{)"([A-Z][A-Za-z]+)"`).FindAllSubmatch(text, -1) {
			used[string(m[1])] = true
		}
		for _, suffix := range regexp.MustCompile(`add\(kind\+"([A-Za-z]+)"`).FindAllSubmatch(text, -1) {
			for _, kind := range []string{"Bucket", "BucketClaim", "BucketAccess"} {
				used[kind+string(suffix[1])] = true
			}
		}
	}
	for reason := range used {
		if !slices.Contains(order, reason) {
			t.Errorf("%s is not in the order", reason)
		}
	}
	for _, reason := range order {
		if !used[reason] {
			t.Errorf("nothing is called %s", reason)
		}
	}
}

func TestRetries(t *testing.T) {
	for message, want := range map[string]string{
		"rpc error: code = InvalidArgument desc = x":    "INVALID_ARGUMENT: given up by COSI's specification, given up by",
		"rpc error: code = Internal desc = x":           "INTERNAL: tried again by COSI's specification, tried again by",
		"rpc error: code = DeadlineExceeded desc = x":   "DEADLINE_EXCEEDED: tried again by COSI's specification, given up by",
		"x: rpc error: code = AlreadyExists desc = x":   "ALREADY_EXISTS: given up",
		"rpc error: code = OutOfRange desc = x":         "OUT_OF_RANGE: tried again",
		"the BucketClass names no driver":               "",
		"failed: rpc error: code = Unknown desc = code": "UNKNOWN: tried again",
	} {
		got := retries(message, "DriverCreateBucket")
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q", message, got)
		}
	}
	if got := retries("rpc error: code = OutOfRange desc = x", "DriverGrantBucketAccess"); !strings.Contains(got, "given up by COSI's") {
		t.Error(got)
	}
}
