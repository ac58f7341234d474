package healer

import (
	"errors"
	"slices"
	"testing"
)

func TestHealthEntries(t *testing.T) {
	d := Diagnosis{
		Conditions: []Condition{
			{Status: Degraded, Reason: PathsFailed, MountPoint: "/a"},
			{Status: Degraded, Reason: OutOfSpace, MountPoint: "/a"},
			{Status: Inaccessible, Reason: PathsFailed, MountPoint: "/b"},
			{Status: Degraded, Reason: PathsFailed, MountPoint: "/c"},
		},
		Failures: []ProviderFailure{{Provider: "driver", Err: errors.New("x")}, {Provider: "mounts", Err: errors.New("x")}},
	}
	want := []HealthEntry{{Inaccessible, PathsFailed}, {Degraded, OutOfSpace}, {Unknown, ProviderFailed}}
	if got := d.HealthEntries(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := (Diagnosis{}).HealthEntries(); len(got) != 0 {
		t.Errorf("a healthy volume has %v", got)
	}
}
