package node

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// ground is a directory of this test to mount in, and the namespace with a
// topology already kept.
func parentMount(t *testing.T) (*Namespace, string) {
	t.Helper()
	realKernel(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir)
	t.Cleanup(func() {
		for unix.Unmount(dir, unix.MNT_DETACH) == nil {
			continue // what was mounted within goes with it
		}
	})
	n := openOwn(t)
	keepsTopology(t, n)
	if _, err := n.Topology(); err != nil {
		t.Fatal(err)
	}
	return n, dir
}

func keepsTopology(t *testing.T, n *Namespace) {
	t.Helper()
	switch {
	case n.statmount:
	case os.Getenv("CI") != "":
		t.Fatal("needs Linux 6.13 or newer, and in CI a test that would skip fails")
	default:
		t.Skip("without unique mount ids (Linux 6.13) no topology is kept")
	}
}

// put mounts a new memory filesystem.
func put(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	done(t, unix.Mount("test", path, "tmpfs", 0, "size=64k"))
}

func done(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func uniqueIDs(mounts []facts.Mount) []uint64 {
	var list []uint64
	for _, m := range mounts {
		list = append(list, m.ID)
	}
	return list
}

// found returns the stack at a path as the engine finds it: in the topology, looked
// at again, and asked for anew when that says so.
func found(t *testing.T, n *Namespace, path string) []uint64 {
	t.Helper()
	for range 3 {
		table, err := n.Topology()
		done(t, err)
		if stack, there := n.Refresh(table.Stack(path)); there {
			return uniqueIDs(stack)
		}
	}
	t.Fatalf("the topology does not catch up with %s", path)
	return nil
}

// read returns the stack at a path from a table read as a whole.
func read(t *testing.T, n *Namespace, path string) []uint64 {
	t.Helper()
	table, err := n.Mounts()
	done(t, err)
	return uniqueIDs(table.Stack(path))
}

func TestTopologyFollows(t *testing.T) {
	for name, tc := range map[string]struct {
		before, change func(t *testing.T, dir string)
	}{
		"nothing":     {},
		"a mount":     {change: func(t *testing.T, dir string) { put(t, dir+"/a") }},
		"an umount":   {func(t *testing.T, dir string) { put(t, dir+"/a") }, func(t *testing.T, dir string) { done(t, unix.Unmount(dir+"/a", 0)) }},
		"a stack":     {func(t *testing.T, dir string) { put(t, dir+"/a") }, func(t *testing.T, dir string) { put(t, dir+"/a"); put(t, dir+"/a") }},
		"its top":     {func(t *testing.T, dir string) { put(t, dir+"/a"); put(t, dir+"/a") }, func(t *testing.T, dir string) { done(t, unix.Unmount(dir+"/a", 0)) }},
		"a remount":   {func(t *testing.T, dir string) { put(t, dir+"/a") }, func(t *testing.T, dir string) { done(t, unix.Unmount(dir+"/a", 0)); put(t, dir+"/a") }},
		"a move":      {func(t *testing.T, dir string) { put(t, dir+"/a"); put(t, dir+"/b/c") }, func(t *testing.T, dir string) { move(t, dir+"/b/c", dir+"/b") }},
		"a move over": {func(t *testing.T, dir string) { put(t, dir+"/a"); put(t, dir+"/b") }, func(t *testing.T, dir string) { move(t, dir+"/b", dir+"/a") }},
		"one beneath another": {func(t *testing.T, dir string) { put(t, dir+"/a"); put(t, dir+"/b") }, func(t *testing.T, dir string) {
			beneath(t, dir+"/b", dir+"/a")
		}},
		"the lower one of two": {func(t *testing.T, dir string) { put(t, dir+"/a"); put(t, dir+"/b"); beneath(t, dir+"/b", dir+"/a") }, func(t *testing.T, dir string) {
			done(t, unix.Unmount(dir+"/a", 0))
		}},
		"one that propagates beneath another": {func(t *testing.T, dir string) {
			put(t, dir+"/s")
			done(t, os.Mkdir(dir+"/s/a", 0o700))
			done(t, unix.Mount("", dir+"/s", "", unix.MS_SHARED, ""))
			done(t, os.Mkdir(dir+"/r", 0o700))
			done(t, unix.Mount(dir+"/s", dir+"/r", "", unix.MS_BIND, ""))
			done(t, unix.Mount("", dir+"/r", "", unix.MS_SLAVE, ""))
			put(t, dir+"/r/a")
		}, func(t *testing.T, dir string) { put(t, dir+"/s/a") }},
		"a directory above, renamed": {func(t *testing.T, dir string) { put(t, dir+"/x/a"); put(t, dir+"/y/a") }, func(t *testing.T, dir string) {
			done(t, os.Rename(dir+"/x", dir+"/z"))
		}},
		"two directories above, swapped": {func(t *testing.T, dir string) { put(t, dir+"/x/a"); put(t, dir+"/y/a") }, func(t *testing.T, dir string) {
			done(t, unix.Renameat2(unix.AT_FDCWD, dir+"/x", unix.AT_FDCWD, dir+"/y", unix.RENAME_EXCHANGE))
		}},
		"covered by one above": {func(t *testing.T, dir string) { put(t, dir+"/a/b") }, func(t *testing.T, dir string) { put(t, dir+"/a") }},
		"unmount-dead-top":     {func(t *testing.T, dir string) { put(t, dir+"/a/b"); put(t, dir+"/a") }, func(t *testing.T, dir string) { done(t, unix.Unmount(dir+"/a", 0)) }},
		"all at once":          {func(t *testing.T, dir string) { put(t, dir+"/a"); put(t, dir+"/a/b") }, func(t *testing.T, dir string) { done(t, unix.Unmount(dir+"/a", unix.MNT_DETACH)) }},
	} {
		t.Run(name, func(t *testing.T) {
			n, dir := parentMount(t)
			if tc.before != nil {
				tc.before(t, dir)
			}
			if _, err := n.Topology(); err != nil {
				t.Fatal(err)
			}
			if tc.change != nil {
				tc.change(t, dir)
			}
			for _, p := range []string{"", "/a", "/b", "/c", "/a/b", "/s/a", "/r/a", "/x/a", "/y/a"} {
				want := read(t, n, dir+p)
				// Not seen where it is: an absence is believed after Mounts only.
				if got := found(t, n, dir+p); !slices.Equal(got, want) && len(got) > 0 {
					t.Errorf("%v at %q, want %v", got, p, want)
				}
			}
		})
	}
}

// A mount keeps its id when it is moved, also while others come and go.
func TestTopologyFollowsAMoveAmongOthers(t *testing.T) {
	for name, other := range map[string]func(t *testing.T, dir string){
		"a mount":   func(t *testing.T, dir string) { put(t, dir+"/c") },
		"an umount": func(t *testing.T, dir string) { done(t, unix.Unmount(dir+"/d", 0)) },
	} {
		n, dir := parentMount(t)
		for _, p := range []string{"/a", "/b", "/d"} {
			put(t, dir+p)
		}
		found(t, n, dir+"/a")
		move(t, dir+"/b", dir+"/a")
		other(t, dir)
		want := read(t, n, dir+"/a")
		if got := found(t, n, dir+"/a"); !slices.Equal(got, want) {
			t.Errorf("beside %s: %v, want %v", name, got, want)
		}
	}
}

// What may change without a report is not kept.
// Who waited while another one read takes that table, if the reading began after the call.
func TestTopologyThatAnotherReads(t *testing.T) {
	n, dir := parentMount(t)
	n.topology.began = time.Now().Add(time.Hour)
	put(t, dir+"/new")
	if got := found(t, n, dir+"/new"); len(got) != 0 {
		t.Errorf("read again: %v", got)
	}
	n.topology.began = time.Now()
	if got := found(t, n, dir+"/new"); len(got) != 1 {
		t.Errorf("a table from before the call counts: %v", got)
	}
}

func TestTopologyKeepsNoOptions(t *testing.T) {
	n, dir := parentMount(t)
	put(t, dir+"/a")
	table, err := n.Topology()
	done(t, err)
	top := table.Stack(dir + "/a")
	for _, m := range table.Mounts() {
		if m.SuperOptions != nil || m.Attr != 0 || m.SuperReadOnly || m.Propagation != (facts.Propagation{}) {
			t.Fatalf("%+v", m)
		}
	}
	for _, want := range []bool{false, true, false} {
		flags := uintptr(unix.MS_REMOUNT)
		if want {
			flags |= unix.MS_RDONLY
		}
		done(t, unix.Mount("", dir+"/a", "", flags, "size=64k"))
		fresh, there := n.Refresh(top)
		if !there || fresh[0].SuperReadOnly != want || fresh[0].Attr.Has(facts.AttrReadOnly) != want || !fresh[0].HasSuperOption("size") {
			t.Errorf("read-only %v: %v, %+v", want, there, fresh)
		}
	}
}

func TestRefreshOfWhatIsGone(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"unmounted":                   func(t *testing.T, dir string) { done(t, unix.Unmount(dir+"/a", 0)); done(t, unix.Unmount(dir+"/a", 0)) },
		"unmounted, the lower one":    func(t *testing.T, dir string) { done(t, unix.Unmount(dir+"/a", 0)) },
		"moved":                       func(t *testing.T, dir string) { put(t, dir+"/b"); move(t, dir+"/a", dir+"/b") },
		"another one beneath":         func(t *testing.T, dir string) { put(t, dir+"/b"); beneath(t, dir+"/b", dir+"/a") },
		"the directory above renamed": func(t *testing.T, dir string) { done(t, os.Rename(dir, dir+"y")) },
	} {
		t.Run(name, func(t *testing.T) {
			n, dir := parentMount(t)
			dir += "/x"
			put(t, dir+"/a")
			put(t, dir+"/a")
			table, err := n.Topology()
			done(t, err)
			stack := table.Stack(dir + "/a")
			if fresh, there := n.Refresh(stack); !there || !slices.Equal(uniqueIDs(fresh), uniqueIDs(stack)) || len(stack) != 2 {
				t.Fatalf("before: %v, %v", stack, fresh)
			}
			change(t, dir)
			if fresh, there := n.Refresh(stack); there {
				t.Errorf("still there: %+v", fresh)
			}
			if want := read(t, n, dir+"/a"); !slices.Equal(found(t, n, dir+"/a"), want) {
				t.Errorf("not %v", want)
			}
		})
	}
	if fresh, there := openOwn(t).Refresh(nil); !there || len(fresh) != 0 {
		t.Errorf("nothing to look at: %v, %v", fresh, there)
	}
}

func TestTops(t *testing.T) {
	n, dir := parentMount(t)
	put(t, dir+"/a/b")
	top := func(p string) facts.Mount {
		table, err := n.Mounts()
		done(t, err)
		return table.Stack(dir + p)[0]
	}
	tops := func(what string, m facts.Mount, want bool) {
		t.Helper()
		if n.IsTop(m) != want {
			t.Errorf("%s: the walk ends on it: %v", what, !want)
		}
	}
	a := top("/a/b")
	tops("alone", a, true)
	put(t, dir+"/a/b")
	tops("beneath another", a, false)
	tops("on top", top("/a/b"), true)
	done(t, unix.Unmount(dir+"/a/b", 0))
	tops("alone again", a, true)
	put(t, dir+"/a")
	tops("below a cover", a, false)
	done(t, unix.Unmount(dir+"/a", 0))
	done(t, unix.Unmount(dir+"/a/b", 0))
	tops("gone", a, false)
	put(t, dir+"/a/b")
	tops("replaced", a, false)
}

// While mounts come, go and move, the topology is asked all the time. Once they
// rest, it finds what is there.
func TestTopologyAfterAStorm(t *testing.T) {
	n, dir := parentMount(t)
	var mountPoints []string
	for i := range 8 {
		mountPoints = append(mountPoints, fmt.Sprintf("%s/p%d", dir, i))
		done(t, os.Mkdir(mountPoints[i], 0o700))
	}
	for round := range 20 {
		var storm, callers sync.WaitGroup
		over := make(chan struct{})
		for range 2 {
			callers.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
					}
					table, err := n.Topology()
					if err != nil {
						t.Error(err)
						return
					}
					for _, p := range mountPoints {
						if fresh, there := n.Refresh(table.Stack(p)); there && len(fresh) > 0 && fresh[0].Path != p {
							t.Errorf("%+v at %s", fresh[0], p)
						}
					}
				}
			})
		}
		for range 2 {
			storm.Go(func() {
				r := rand.New(rand.NewPCG(uint64(round), rand.Uint64()))
				at := func() string { return mountPoints[r.IntN(len(mountPoints))] }
				for range 100 {
					switch p := at(); r.IntN(5) { // some of it fails, as nothing is there
					case 0, 1:
						_ = unix.Mount("test", p, "tmpfs", 0, "size=64k")
					case 2, 3:
						_ = unix.Unmount(p, unix.MNT_DETACH)
					case 4:
						_ = unix.Mount(p, at(), "", unix.MS_MOVE, "")
					}
				}
			})
		}
		storm.Wait()
		close(over)
		callers.Wait()
		for _, p := range mountPoints {
			want := read(t, n, p)
			eventually(t, fmt.Sprintf("%v are found at %s", want, p), func() bool { return slices.Equal(found(t, n, p), want) })
		}
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	done(t, unix.Mount(from, to, "", unix.MS_MOVE, ""))
}

// beneath moves a mount beneath the one that stands at a path (Linux 6.5).
func beneath(t *testing.T, from, at string) {
	t.Helper()
	const moveBeneath = 0x200 // MOVE_MOUNT_BENEATH
	done(t, unix.MoveMount(unix.AT_FDCWD, from, unix.AT_FDCWD, at, moveBeneath))
}
