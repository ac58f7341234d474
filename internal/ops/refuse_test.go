package ops

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
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
			_, err := place(facts.PlacePlan{Staged: facts.Mount{Path: dir, ID: 1, OldID: 1}, Target: dir})
			return err
		},
		"finalize another's": func() error {
			_, err := finalize(FinalizeQuery{PlacePlan: facts.PlacePlan{Target: dir, Placed: facts.Ref{ID: 1, OldID: 1}}})
			return err
		},
		"finalize none": func() error {
			_, err := finalize(FinalizeQuery{PlacePlan: facts.PlacePlan{Target: dir, Placed: parentMount}})
			return err
		},
		"take off what is not placeholder": func() error {
			_, err := unmountTop(facts.UnmountPlan{Top: mountAt(t, dir), Placeholder: true})
			return err
		},
		"take off another's": func() error {
			_, err := unmountTop(facts.UnmountPlan{Top: facts.Mount{Path: dir, ID: 1, OldID: 1}, Placeholder: true})
			return err
		},
	} {
		if err := op(); !errors.Is(err, operation.ErrRefused) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

func TestNoWayToTheMountPoint(t *testing.T) {
	gone := realDir(t) + "/none/x"
	for name, op := range map[string]func() error{
		"mount point": func() error {
			_, err := place(facts.PlacePlan{Staged: facts.Mount{Path: gone}, Target: gone})
			return err
		},
		"finalize": func() error {
			_, err := finalize(FinalizeQuery{PlacePlan: facts.PlacePlan{Target: gone}})
			return err
		},
		"take off": func() error { _, err := unmountTop(facts.UnmountPlan{Top: facts.Mount{Path: gone}}); return err },
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

// What answers by the time of the step is not replaced.
func TestReplaceOfWhatAnswers(t *testing.T) {
	needsRoot(t)
	var mounts []facts.Mount
	for range 2 {
		dir := realDir(t)
		must(t, unix.Mount("live", dir, "tmpfs", 0, ""))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		mounts = append(mounts, mountAt(t, dir))
	}
	staged, target := mounts[0], mounts[1]
	// One of NFS has to answer ESTALE, whatever the facts say of its superblock.
	nfs := target
	nfs.FSType = "nfs4"
	for _, plan := range []facts.PlacePlan{{Dead: target}, {Dead: nfs, Ended: true}} {
		plan.Staged, plan.Target, plan.Position = staged, target.Path, facts.BeneathDead
		if _, err := place(plan); !errors.Is(err, operation.ErrRefused) {
			t.Errorf("%s: got %v, want a refusal", plan.Dead.FSType, err)
		}
		if now := mountAt(t, target.Path); now.ID != target.ID {
			t.Errorf("%+v is %+v now", target, now)
		}
	}
}
