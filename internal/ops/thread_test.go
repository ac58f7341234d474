package ops

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// Two descriptors on one mount agree, and two mounts differ.
func TestRefOf(t *testing.T) {
	open := func(p string) facts.Ref {
		f, err := os.Open(p)
		must(t, err)
		defer f.Close()
		ref, err := thread{}.refOf(int(f.Fd()))
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
	if _, err := (thread{}).refOf(-1); err == nil {
		t.Error("a mount without a descriptor")
	}
}

func TestParentOf(t *testing.T) {
	proc, err := openTarget("/proc")
	must(t, err)
	defer proc.close()
	fd, ref, err := proc.top()
	must(t, err)
	defer unix.Close(fd)
	parentMount, err := thread{}.refOf(proc.dir)
	must(t, err)
	if parent, err := (thread{}).parentOf(ref); err != nil || !parent.Same(parentMount) {
		t.Errorf("/proc stands on %v, %v; want %v", parent, err, parentMount)
	}
	if err := proc.checkStack(ref, parentMount); err != nil {
		t.Error(err)
	}
	if err := proc.checkStack(parentMount, parentMount); !errors.Is(err, operation.ErrRefused) {
		t.Errorf("something else on top: %v", err)
	}
	if _, err := (thread{}).parentOf(facts.Ref{OldID: 1 << 30}); !errors.Is(err, operation.ErrRefused) {
		t.Errorf("a mount that is gone: %v", err)
	}
}
