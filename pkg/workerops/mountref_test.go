package workerops

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
)

func TestSameMount(t *testing.T) {
	for _, tc := range []struct {
		a, b MountRef
		want bool
	}{
		{MountRef{ID: 1, OldID: 2}, MountRef{ID: 1, OldID: 2}, true},
		{MountRef{ID: 1, OldID: 2}, MountRef{ID: 1, OldID: 3}, true},
		{MountRef{ID: 1, OldID: 2}, MountRef{ID: 9, OldID: 2}, false}, // used again
		{MountRef{ID: 1, OldID: 2}, MountRef{OldID: 2}, true},
		{MountRef{OldID: 2}, MountRef{OldID: 3}, false},
		{MountRef{ID: 1}, MountRef{OldID: 3}, false},
		{MountRef{}, MountRef{}, false}, // nothing known is nothing shown
	} {
		if tc.a.Same(tc.b) != tc.want || tc.b.Same(tc.a) != tc.want {
			t.Errorf("%+v and %+v: want %v", tc.a, tc.b, tc.want)
		}
	}
}

// Two descriptors on one mount agree, and two mounts differ.
func TestRefOf(t *testing.T) {
	open := func(p string) MountRef {
		f, err := os.Open(p)
		must(t, err)
		defer f.Close()
		ref, err := refOf(int(f.Fd()))
		must(t, err)
		if ref.OldID == 0 {
			t.Errorf("%s: %+v", p, ref)
		}
		return ref
	}
	dir := realDir(t)
	must(t, os.Mkdir(dir+"/a", 0o700))
	if a, b := open(dir), open(dir+"/a"); !a.Same(b) {
		t.Errorf("%v and %v", a, b)
	}
	if a, b := open("/proc"), open(dir); a.Same(b) {
		t.Errorf("%v and %v", a, b)
	}
	if _, err := refOf(-1); err == nil {
		t.Error("a mount without a descriptor")
	}
}

func TestParentOf(t *testing.T) {
	proc, err := openLeaf("/proc")
	must(t, err)
	defer proc.close()
	fd, ref, err := proc.top()
	must(t, err)
	defer unix.Close(fd)
	parentMount, err := refOf(proc.dir)
	must(t, err)
	if parent, err := parentOf(ref); err != nil || !parent.Same(parentMount) {
		t.Errorf("/proc stands on %v, %v; want %v", parent, err, parentMount)
	}
	if err := proc.alone(ref, parentMount); err != nil {
		t.Error(err)
	}
	if err := proc.alone(parentMount, parentMount); !errors.Is(err, worker.ErrRefused) {
		t.Errorf("something else on top: %v", err)
	}
	if _, err := parentOf(MountRef{OldID: 1 << 30}); !errors.Is(err, worker.ErrRefused) {
		t.Errorf("a mount that is gone: %v", err)
	}
}
