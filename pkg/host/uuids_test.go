package host

import "testing"

func TestUUIDsAreKeptByMount(t *testing.T) {
	var u uuids
	a, b := Mount{ID: 1, Dev: Dev{8, 16}}, Mount{ID: 2, Dev: Dev{8, 16}}
	if got := u.of(a); got != "" {
		t.Errorf("%q before anything is known", got)
	}
	u.keep(a, "uuid-a")
	if u.of(a) != "uuid-a" || u.of(b) != "" {
		t.Errorf("%q, %q", u.of(a), u.of(b))
	}
	u.keep(a, "") // it did not tell this time
	if u.of(a) != "uuid-a" {
		t.Error("forgotten")
	}
	// Without unique mount ids a mount cannot be told from the next one.
	u.keep(Mount{OldID: 7}, "uuid-c")
	if got := u.of(Mount{OldID: 7}); got != "" {
		t.Errorf("%q of a mount without an id", got)
	}
	for i := range uint64(2*maxUUIDs + 1) {
		u.keep(Mount{ID: 10 + i}, "x")
		if len(u.known) > maxUUIDs {
			t.Fatalf("%d are kept", len(u.known))
		}
	}
}
