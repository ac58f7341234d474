package clustersettings

import (
	"slices"
	"testing"
	"time"
)

func TestEvictionHasDefaults(t *testing.T) {
	e, err := ParseEviction("drivers: [a.example.com]")
	if err != nil || e.After.Duration != 2*time.Minute || *e.Max != 1 || *e.PerHour != 6 || slices.Contains(e.Reasons, FilesystemErrors) || len(e.Reasons) != 5 || !*e.Automatic {
		t.Errorf("got %+v, %v", e, err)
	}
	e, err = ParseEviction("drivers: [a]\nreasons: [FilesystemErrors]\nafter: 0s\nmax: 2\nperHour: 3\nautomatic: false\n")
	if err != nil || e.After.Duration != 0 || *e.Max != 2 || *e.PerHour != 3 || *e.Automatic || !slices.Equal(e.Reasons, []string{FilesystemErrors}) {
		t.Errorf("got %+v, %v", e, err)
	}
}

func TestBadEvictionIsRefused(t *testing.T) {
	for _, text := range []string{
		"drivers: a", "driver: [a]", "drivers: ['']", "drivers: [a]\nreasons: [DeviceMissing]", "drivers: [a]\nmax: 0", "drivers: [a]\nperHour: 0",
		"drivers: [a]\nafter: -1s", "drivers: [a]\nafter: soon", "drivers: [a]\nautomatic: never", "drivers: [a]\ndrivers: [b]",
	} {
		if e, err := ParseEviction(text); err == nil {
			t.Errorf("%q: got %+v", text, e)
		}
	}
}
