package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

// list has the sick claims first, and last those of which no node has said anything.
func TestClaims(t *testing.T) {
	claim := func(name string, annotations map[string]string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: annotations}}
	}
	now := time.Now().UTC().Format(time.RFC3339)
	f := &fakeAPI{t: t, claims: []metav1.PartialObjectMetadata{
		claim("a-new", map[string]string{"other": "x", volumehealth.Annotation + "uid-9": "no JSON"}),
		claim("b-well", map[string]string{volumehealth.Annotation + "uid-1": `{"state":"healthy","since":"2026-01-02T03:04:05Z","lastChecked":"` + now + `","node":"node-1"}`}),
		claim("c-sick", map[string]string{
			volumehealth.Annotation + "uid-1": `{"state":"healthy","since":"2026-01-02T03:04:05Z","lastChecked":"` + now + `","node":"node-1"}`,
			volumehealth.Annotation + "uid-2": `{"state":"unhealthy","since":"2026-01-02T03:04:06Z","lastChecked":"` + now + `","node":"evil\u001b[2J"}`,
		}),
	}}
	const table = "NAMESPACE   CLAIM    HEALTH      NODE          SINCE\n" +
		"shop        c-sick   unhealthy   evil\\x1b[2J   2026-01-02T03:04:06Z\n" +
		"shop        b-well   healthy     node-1        2026-01-02T03:04:05Z\n" +
		"shop        c-sick   healthy     node-1        2026-01-02T03:04:05Z\n" +
		"shop        a-new    -           -             -\n"
	for program, args := range map[string]string{"healerctl": "list -A", plugin: "list"} {
		if code, stdout, stderr := f.serve(program)(t.Context(), args); code != 0 || stdout != table || stderr != "" {
			t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
		}
	}
	_, stdout, _ := f.serve("healerctl")(t.Context(), "list -n shop -o wide")
	if !strings.HasPrefix(stdout, "NAMESPACE   CLAIM    HEALTH      NODE          SINCE                  CHECKED\n") {
		t.Error(stdout)
	}
	f.claims[1].Annotations[volumehealth.Annotation+"uid-1"] = `{"state":"healthy","since":"2026-01-02T03:04:05Z","lastChecked":"2026-01-02T04:00:00Z","node":"node-1"}`
	if _, stdout, _ = f.serve("healerctl")(t.Context(), "list -A"); !strings.Contains(stdout, "b-well   healthy, not checked since 2026-01-02T04:00:00Z   node-1") {
		t.Error(stdout)
	}
	_, stdout, _ = f.serve("healerctl")(t.Context(), "list -A -o json")
	var all []map[string]string
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || len(all) != 4 || all[0]["state"] != "unhealthy" || all[0]["claim"] != "c-sick" {
		t.Errorf("%v: %s", err, stdout)
	}
}
