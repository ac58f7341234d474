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
	ground, err := refOf(here.dir)
	must(t, err)
	const interim = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSYMFOLLOW
	for name, op := range map[string]func() error{
		"writable interim": func() error { _, err := place(PlaceQuery{Source: dir, Target: dir}); return err },
		"staged anew": func() error {
			_, err := place(PlaceQuery{Source: dir, SourceMount: MountRef{ID: 1, OldID: 1}, Target: dir, Interim: interim})
			return err
		},
		"settle another's": func() error {
			_, err := settle(SettleQuery{Target: dir, Mount: MountRef{ID: 1, OldID: 1}})
			return err
		},
		"settle none": func() error { _, err := settle(SettleQuery{Target: dir, Mount: ground}); return err },
		"take off what is not interim": func() error {
			_, err := takeOff(TakeOffQuery{Target: dir, Mount: ground, Interim: interim})
			return err
		},
		"take off another's": func() error {
			_, err := takeOff(TakeOffQuery{Target: dir, Mount: MountRef{ID: 1, OldID: 1}})
			return err
		},
	} {
		if err := op(); !errors.Is(err, worker.ErrRefused) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

func TestNoWayToThePlace(t *testing.T) {
	gone := realDir(t) + "/none/x"
	const interim = unix.MOUNT_ATTR_RDONLY
	for name, op := range map[string]func() error{
		"place":    func() error { _, err := place(PlaceQuery{Source: gone, Target: gone, Interim: interim}); return err },
		"settle":   func() error { _, err := settle(SettleQuery{Target: gone}); return err },
		"take off": func() error { _, err := takeOff(TakeOffQuery{Target: gone}); return err },
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
