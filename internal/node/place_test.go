package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// A step that nobody wants any more asks no worker for anything.
func TestNothingIsDoneForAMountPointThatIsNotWanted(t *testing.T) {
	pool := worker.NewPool(worker.Config{Binary: "/nonexistent/worker", Max: 1, Idle: 1, KillWait: time.Second})
	t.Cleanup(func() {
		if err := pool.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	root := t.TempDir()
	node, err := New(Config{
		Pool: pool, Namespace: openOwn(t, root), KubeletRoot: root,
		ProbeTimeout: time.Minute, StepTimeout: time.Minute, SlowAnswer: time.Minute, Sysfs: "/sys",
	})
	if err != nil {
		t.Fatal(err)
	}
	placeholder := facts.Mount{OldID: 1 << 30, Path: root + "/mount point", Root: "/", Attr: facts.AttrPlaceholder}
	plan := facts.PlacePlan{Target: placeholder.Path, Placed: placeholder.Ref()}
	unwanted := errors.New("the pod is gone")
	for name, step := range map[string]func(revalidate func(context.Context) error) error{
		"finish": func(revalidate func(context.Context) error) error {
			return node.Place(t.Context(), plan, revalidate)
		},
		"take off": func(revalidate func(context.Context) error) error {
			return node.UnmountTop(t.Context(), facts.UnmountPlan{Top: placeholder, Placeholder: true}, revalidate)
		},
	} {
		if err := step(func(context.Context) error { return unwanted }); !errors.Is(err, unwanted) {
			t.Errorf("%s, not wanted: %v", name, err)
		}
		// That this worker cannot be reached is what shows the above.
		if err := step(func(context.Context) error { return nil }); err == nil || errors.Is(err, unwanted) {
			t.Errorf("%s, wanted: %v", name, err)
		}
	}
}
