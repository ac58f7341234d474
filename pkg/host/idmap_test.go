package host

import (
	"os"
	"testing"
)

func TestIDMapOfAMount(t *testing.T) {
	realKernel(t)
	at, pid := idMappedMount(t)
	n := openOwn(t)
	table, err := n.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	stack := table.Stack(at)
	if len(stack) != 2 || !stack[0].Attr.Has(AttrIDMap) {
		t.Fatalf("%+v", stack)
	}
	maps := n.idMap(stack[0].ID)
	if maps == (idMaps{}) {
		if os.Getenv("CI") != "" {
			t.Fatal("needs Linux 6.15 or newer, and in CI a test that would skip fails")
		}
		t.Skip("the kernel's statmount(2) does not tell ID maps (Linux 6.15 does)")
	}
	if want := (idMaps{"0 100000 1000\n1000 300000 10", "0 100000 1000"}); maps != want {
		t.Errorf("%+v, want %+v", maps, want)
	}
	if proc := Procfs("/proc"); !proc.idMapped(pid, maps) || proc.idMapped(os.Getpid(), maps) {
		t.Errorf("as its process %v, as ours %v", proc.idMapped(pid, maps), proc.idMapped(os.Getpid(), maps))
	}
	for name, id := range map[string]uint64{"that maps none": stack[1].ID, "without an id": 0, "that is gone": 1 << 60} {
		if maps := n.idMap(id); maps.users != "" {
			t.Errorf("a mount %s: %+v", name, maps)
		}
	}
}

func TestIDMapped(t *testing.T) {
	const uid, gid = "0 100000 65536\n70000 1 1", "0 100000 65536"
	files := map[string]string{"10/uid_map": "         0     100000      65536\n     70000          1          1\n", "10/gid_map": "         0     100000      65536\n"}
	proc := Procfs(tree(t, files))
	for name, tc := range map[string]struct {
		pid  int
		maps idMaps
		want bool
	}{
		"the same":                    {10, idMaps{uid, gid}, true},
		"other users":                 {10, idMaps{gid, gid}, false},
		"other groups":                {10, idMaps{uid, uid}, false},
		"the kernel does not tell":    {10, idMaps{}, false},
		"no groups":                   {10, idMaps{uid, ""}, false},
		"another order is another":    {10, idMaps{"70000 1 1\n0 100000 65536", gid}, false},
		"the process has ended":       {11, idMaps{uid, gid}, false},
		"ended, and nothing was told": {11, idMaps{}, false},
	} {
		if proc.idMapped(tc.pid, tc.maps) != tc.want {
			t.Errorf("%s: %v", name, !tc.want)
		}
	}
}

func TestLines(t *testing.T) {
	text := []byte("0 1  2\x003 4 5\x00rest")
	for name, tc := range map[string]struct {
		at, count uint32
		want      string
	}{
		"none":           {0, 0, ""},
		"one":            {0, 1, "0 1 2"},
		"two":            {0, 2, "0 1 2\n3 4 5"},
		"the second":     {7, 1, "3 4 5"},
		"without an end": {13, 1, ""},
		"more than are":  {0, 3, ""},
		"behind":         {99, 1, ""},
		"at the end":     {17, 1, ""},
	} {
		if got := lines(text, tc.at, tc.count); got != tc.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
