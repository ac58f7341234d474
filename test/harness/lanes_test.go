package harness

import (
	"slices"
	"testing"
)

func TestOnly(t *testing.T) {
	for _, tc := range []struct{ name, asked, want string }{
		{"TestA", "", "^TestA$"},
		{"TestA", "TestA|TestB", "^TestA$"},
		{"TestA", "^(TestA|TestB)$", "^TestA$"},
		{"TestA", "^TestA$/^x|y$|^TestB$", "^TestA$/^x"},
		{"TestA", "^TestA$/^x$|^TestA$/^(y|z)$|^TestB$", "^TestA$/^x$|^TestA$/^(y|z)$"},
	} {
		if got := only(tc.name, tc.asked); got != tc.want {
			t.Errorf("only(%q, %q) = %q, want %q", tc.name, tc.asked, got, tc.want)
		}
	}
}

func TestLaneOutputKeepsATestTogether(t *testing.T) {
	var o laneOutput
	for _, part := range []string{"PA", "SS\n\x00end of", " test\n--- FAIL: TestB\nFAIL\n"} {
		_, _ = o.Write([]byte(part))
	}
	if got := o.text.String(); got != "--- FAIL: TestB\nFAIL\n" {
		t.Errorf("%q is kept of the test that goes on", got)
	}
}

func TestSlowArgs(t *testing.T) {
	defer func(was float64) { slow = was }(slow)
	slow = 3
	given := []string{"--probe-timeout=1s", "--slow-answer=500ms", "--heal-timeout=long", "--loop=heal"}
	want := []string{"--probe-timeout=3s", "--slow-answer=1.5s", "--heal-timeout=long", "--loop=heal"}
	if got := slowArgs(given); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := slowArgs([]string{"--probe-timeout=30s"}); !slices.Equal(got, []string{"--probe-timeout=1m0s"}) {
		t.Errorf("got %v, of which a server takes 1m at most", got)
	}
	want = []string{"--probe-timeout=3s", "--probe-timeout=1.5s", "--slow-answer=1.5s"}
	if got := slowArgs([]string{"--probe-timeout=1s", "--probe-timeout=500ms"}); !slices.Equal(got, want) {
		t.Errorf("got %v, with which answers are late before the usual time", got)
	}
	if got := slowArgs(nil); !slices.Equal(got, []string{"--probe-timeout=15s"}) {
		t.Errorf("the default is %v", got)
	}
}

func TestReservedPorts(t *testing.T) {
	if !reserve(2, 2) || reserve(3, 1) {
		t.Fatal("two may have a port")
	}
	if reserve(1, 2) || !reserve(1, 1) {
		t.Error("a port is kept of several that were not all to be had")
	}
}
