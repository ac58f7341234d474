package workerops

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// What can be refused before anything needs a privilege.
func TestRefusedBeforeAnything(t *testing.T) {
	dir := realDir(t)
	l, err := openLeaf(dir + "/")
	if err == nil {
		l.close()
		t.Error("a path without a last component")
	}
	here, err := openLeaf(dir)
	must(t, err)
	defer here.close()
	parentMount, err := refOf(here.dir)
	must(t, err)
	const placeholder = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSYMFOLLOW
	for name, op := range map[string]func() error{
		"writable placeholder": func() error { _, err := attach(AttachQuery{Source: dir, Target: dir}); return err },
		"staged anew": func() error {
			_, err := attach(AttachQuery{Source: dir, SourceMount: MountRef{ID: 1, OldID: 1}, Target: dir, Placeholder: placeholder})
			return err
		},
		"finalize another's": func() error {
			_, err := finalize(FinalizeQuery{Target: dir, Mount: MountRef{ID: 1, OldID: 1}})
			return err
		},
		"finalize none": func() error { _, err := finalize(FinalizeQuery{Target: dir, Mount: parentMount}); return err },
		"take off what is not placeholder": func() error {
			_, err := unmountDuplicate(UnmountDuplicateQuery{Target: dir, Mount: parentMount, Placeholder: placeholder})
			return err
		},
		"take off another's": func() error {
			_, err := unmountDuplicate(UnmountDuplicateQuery{Target: dir, Mount: MountRef{ID: 1, OldID: 1}})
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
	const placeholder = unix.MOUNT_ATTR_RDONLY
	for name, op := range map[string]func() error{
		"mount point": func() error {
			_, err := attach(AttachQuery{Source: gone, Target: gone, Placeholder: placeholder})
			return err
		},
		"finalize": func() error { _, err := finalize(FinalizeQuery{Target: gone}); return err },
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
