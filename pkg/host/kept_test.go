package host

import "testing"

func TestKept(t *testing.T) {
	var k kept[int, string]
	if v, known := k.of(1); known || v != "" {
		t.Errorf("%q before anything is known", v)
	}
	k.forget(1)
	k.keep(1, "a")
	k.keep(1, "b")
	if v, known := k.of(1); !known || v != "b" {
		t.Errorf("%q, %v", v, known)
	}
	for i := range 2 * maxKept {
		k.keep(10+i, "x")
		if _, known := k.of(10 + i); !known || len(k.known) > maxKept {
			t.Fatalf("the last is known: %v; %d are kept", known, len(k.known))
		}
	}
	k.keep(10+2*maxKept-1, "again")
	if len(k.known) != maxKept {
		t.Errorf("%d are kept after one that was known came again", len(k.known))
	}
	k.forget(10 + 2*maxKept - 1)
	if len(k.known) != maxKept-1 {
		t.Errorf("%d are kept after one was forgotten", len(k.known))
	}
}
