package ops

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// What can be refused before anything needs a privilege.
func TestRefusedBeforeAnything(t *testing.T) {
	dir := realDir(t)
	l, err := openTarget(dir + "/")
	if err == nil {
		l.close()
		t.Error("a path without a last component")
	}
	here, err := openTarget(dir)
	must(t, err)
	defer here.close()
	parentMount, err := here.parent()
	must(t, err)
	for name, op := range map[string]func() error{
		"staged anew": func() error {
			_, err := place(PlaceQuery{RebindPlan: facts.RebindPlan{Staged: facts.Mount{Path: dir, ID: 1, OldID: 1}, Target: dir}})
			return err
		},
		"finalize another's": func() error {
			_, err := finalize(FinalizeQuery{RebindPlan: facts.RebindPlan{Target: dir}, Mount: facts.Ref{ID: 1, OldID: 1}})
			return err
		},
		"finalize none": func() error {
			_, err := finalize(FinalizeQuery{RebindPlan: facts.RebindPlan{Target: dir}, Mount: parentMount})
			return err
		},
		"take off what is not placeholder": func() error {
			_, err := unmountDuplicate(UnmountDuplicateQuery{Target: dir, Mount: parentMount})
			return err
		},
		"take off another's": func() error {
			_, err := unmountDuplicate(UnmountDuplicateQuery{Target: dir, Mount: facts.Ref{ID: 1, OldID: 1}})
			return err
		},
	} {
		if err := op(); !errors.Is(err, worker.ErrRefused) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

func TestNoWayToTheMountPoint(t *testing.T) {
	gone := realDir(t) + "/none/x"
	for name, op := range map[string]func() error{
		"mount point": func() error {
			_, err := place(PlaceQuery{RebindPlan: facts.RebindPlan{Staged: facts.Mount{Path: gone}, Target: gone}})
			return err
		},
		"finalize": func() error {
			_, err := finalize(FinalizeQuery{RebindPlan: facts.RebindPlan{Target: gone}})
			return err
		},
		"take off": func() error { _, err := unmountDuplicate(UnmountDuplicateQuery{Target: gone}); return err },
	} {
		if err := op(); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a := probe(ProbeQuery{Path: gone}); a.Op != "resolve" || a.Errno != unix.ENOENT {
		t.Errorf("probe: %+v", a)
	}
}

func TestOperationsHaveTheirNames(t *testing.T) {
	names := map[string]bool{}
	for _, op := range Ops() {
		if op.Name() == "" || names[op.Name()] {
			t.Errorf("operation %q", op.Name())
		}
		names[op.Name()] = true
	}
}
