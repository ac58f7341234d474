package harness

import "testing"

// BuildHealerctl returns the path of healerctl.
func BuildHealerctl(t testing.TB) string {
	t.Helper()
	NeedsHost(t, "Go")
	path, err := buildOnce("healerctl", func(to string) error { return buildAs(to, "healerctl", false, released) })
	Must(t, err)
	return path
}
