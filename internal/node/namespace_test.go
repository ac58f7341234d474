package node

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func openOwn(t *testing.T, roots ...string) *Namespace {
	t.Helper()
	n, err := OpenNamespace("", roots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// Both ways to read the table of this very process tell the same.
func TestStatmountTellsWhatMountinfoDoes(t *testing.T) {
	n := openOwn(t)
	if !n.statmount {
		if os.Getenv("CI") != "" {
			t.Fatal("needs Linux 6.13 or newer, and in CI a test that would skip fails")
		}
		t.Skip("the kernel's statmount(2) does not tell everything (Linux 6.13 or newer is needed)")
	}
	var byStatmount, byMountinfo map[int]facts.Mount
	for range 10 { // the table lives
		a, err := n.readStatmount()
		if err != nil {
			t.Fatal(err)
		}
		b, err := n.readMountinfo()
		if err != nil {
			t.Fatal(err)
		}
		byStatmount, byMountinfo = byID(t, a, true), byID(t, b, false)
		if reflect.DeepEqual(byStatmount, byMountinfo) {
			return
		}
	}
	for id, want := range byMountinfo {
		got, found := byStatmount[id]
		delete(byStatmount, id)
		g, w := reflect.ValueOf(got), reflect.ValueOf(want)
		for i := range g.NumField() {
			if !found || !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
				t.Errorf("%s: %s is %#v by statmount, %#v by mountinfo", want.Path, g.Type().Field(i).Name, g.Field(i), w.Field(i))
			}
		}
	}
	for _, m := range byStatmount {
		t.Errorf("%s is only in statmount's table", m.Path)
	}
}

// byID takes away what only one of the two tells: the unique id, and the flags
// of the superblock among its options.
func byID(t *testing.T, table Table, hasID bool) map[int]facts.Mount {
	t.Helper()
	mounts := map[int]facts.Mount{}
	for _, m := range table.Mounts() {
		if (m.ID != 0) != hasID {
			t.Errorf("%s has unique id %d", m.Path, m.ID)
		}
		m.ID = 0
		m.SuperOptions = slices.DeleteFunc(slices.Clone(m.SuperOptions), func(o string) bool {
			return slices.Contains([]string{"rw", "ro", "sync", "dirsync", "mand", "lazytime"}, o)
		})
		if len(m.SuperOptions) == 0 {
			m.SuperOptions = nil
		}
		mounts[m.OldID] = m
	}
	return mounts
}

func TestMountsIsNeverOld(t *testing.T) {
	n := openOwn(t)
	for range 3 {
		table, err := n.Mounts()
		if err != nil {
			t.Fatal(err)
		}
		if root := table.Stack("/"); len(root) == 0 || root[0].FSType == "" {
			t.Fatalf("the root is %+v", root)
		}
	}
}

func TestRootsAreResolved(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link, long := filepath.Join(dir, "link"), filepath.Join(dir, "link/deeper")
	if err := os.MkdirAll(filepath.Join(dir, "real/deeper"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	ns := openOwn(t, link, dir, long)
	for p, want := range map[string]string{
		link:              dir + "/real",
		link + "/a b":     dir + "/real/a b",
		link + "x/a":      dir + "/linkx/a",
		long + "/v":       dir + "/real/deeper/v",
		dir + "/real/v":   dir + "/real/v",
		"/elsewhere/v":    "/elsewhere/v",
		"/":               "/",
		dir + "/linkling": dir + "/linkling",
	} {
		if got := ns.RealPath(p); got != want {
			t.Errorf("%s: %s, want %s", p, got, want)
		}
	}
}

func TestOpenNamespaceErrors(t *testing.T) {
	for _, tc := range []struct{ namespace, root string }{
		{"/nonexistent/ns/mnt", "/"},
		{"", "/nonexistent/kubelet"},
		{"/dev/null", "/"},
	} {
		before := countFDs(t)
		if n, err := OpenNamespace(tc.namespace, []string{tc.root}); err == nil {
			t.Errorf("%+v: opened", tc)
			_ = n.Close()
		} else if !strings.Contains(err.Error(), strings.TrimPrefix(tc.namespace, "/")) {
			t.Errorf("%+v: %v", tc, err)
		}
		eventually(t, "no descriptor is left", func() bool { return countFDs(t) <= before })
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}
