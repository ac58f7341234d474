package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// batchFixture are mount points in containers that one worker heals together.
type batchFixture struct {
	*fixture
	paths []string
	runs  [][]string
	errs  map[string]error
}

func newBatchFixture(t *testing.T, n int) *batchFixture {
	t.Helper()
	w := &batchFixture{fixture: newFixture(t), errs: map[string]error{}}
	w.healthy()
	for i := range n {
		path := fmt.Sprintf("/proc/%d/root/data", 100+i)
		w.paths = append(w.paths, path)
		w.fall(path, healer.StaleInContainers)
		w.steps = append(w.steps, healer.Step{
			Name: "replace-in-container", MountPoint: healer.MountPoint{Role: healer.RoleContainer, Path: path}, Cost: healer.Replace,
			Heals: []healer.Reason{healer.StaleInContainers}, Source: disk, RunBatch: w.run,
		})
	}
	return w
}

func (w *batchFixture) run(ctx context.Context, steps []healer.Step, revalidate []func(context.Context) error) []error {
	errs := make([]error, len(steps))
	var paths []string
	for i, s := range steps {
		paths = append(paths, s.MountPoint.Path)
		if errs[i] = revalidate[i](ctx); errs[i] == nil {
			errs[i] = w.errs[s.MountPoint.Path]
		}
		if errs[i] == nil {
			w.recover(s.MountPoint.Path)
		}
	}
	w.runs = append(w.runs, paths)
	return errs
}

// audited returns the mount points of a log's lines, with what came of each.
func audited(entries []healer.AuditEntry) (lines []string) {
	for _, e := range entries {
		lines = append(lines, e.MountPoint+" "+e.Outcome)
	}
	return lines
}

func TestStepsThatRunTogether(t *testing.T) {
	w := newBatchFixture(t, 3)
	r := w.heal(volume)
	if len(w.runs) != 1 || !slices.Equal(w.runs[0], w.paths) || r.Verdict() != healer.Healed || len(r.Steps) != 3 {
		t.Errorf("%s after %v: %+v", r.Verdict(), w.runs, r.Steps)
	}
	var before, after []string
	for i, p := range w.paths {
		before, after = append(before, p+" "), append(after, p+" done")
		if r.Steps[i].MountPoint != p || r.Steps[i].Err != nil {
			t.Errorf("%+v", r.Steps[i])
		}
	}
	if !slices.Equal(audited(w.notes.before), before) || !slices.Equal(audited(w.notes.after), after) {
		t.Errorf("audited %v, %v", audited(w.notes.before), audited(w.notes.after))
	}
	if w.notes.entered != 3 || !slices.Equal(w.notes.left, []error{nil, nil, nil}) {
		t.Errorf("%d permits, ended with %v", w.notes.entered, w.notes.left)
	}
}

// Each has its own outcome, and one is enough for "healed" of none.
func TestOneOfThemFails(t *testing.T) {
	w := newBatchFixture(t, 3)
	w.errs[w.paths[1]] = errors.New("it has ended")
	r := w.heal(volume)
	if r.Verdict() != healer.Abnormal || len(r.Steps) != 3 || len(w.runs) != 1 {
		t.Fatalf("%s after %v", r.Verdict(), w.runs)
	}
	for i, p := range w.paths {
		failed := i == 1
		if (r.Steps[i].Err != nil) != failed || (w.notes.left[i] != nil) != failed || (w.notes.after[i].Outcome != "done") != failed {
			t.Errorf("%s: %+v, audited as %q", p, r.Steps[i], w.notes.after[i].Outcome)
		}
	}
}

func TestSomeOfThemDoNotRun(t *testing.T) {
	for name, spoil := range map[string]func(*batchFixture){
		"its provider refuses":  func(w *batchFixture) { w.steps[1].Refused = "too early" },
		"the gate refuses":      func(w *batchFixture) { w.notes.refuseAt = w.paths[1] },
		"nothing known of it":   func(w *batchFixture) { w.steps[1].Source = facts.Dev{Minor: 99} },
		"it is not needed":      func(w *batchFixture) { w.recover(w.paths[1]) },
		"another step's":        func(w *batchFixture) { w.steps[1].Name = "replace-elsewhere"; w.steps[1].Cost = healer.Restage },
		"for something else":    func(w *batchFixture) { w.steps[1].Heals = []healer.Reason{healer.IOError} },
		"the first one refuses": func(w *batchFixture) { w.steps[0], w.steps[1] = w.steps[1], w.steps[0]; w.notes.refuseAt = w.paths[1] },
	} {
		t.Run(name, func(t *testing.T) {
			w := newBatchFixture(t, 3)
			spoil(w)
			r := w.heal(volume)
			if len(w.runs) == 0 || slices.Contains(w.runs[0], w.paths[1]) || len(w.runs[0]) != 2 {
				t.Errorf("ran at %v", w.runs)
			}
			refused := len(r.Refused) == 1 && r.Refused[0].MountPoint == w.paths[1] && r.Refused[0].Why != ""
			switch name {
			case "it is not needed", "another step's", "for something else":
				if len(r.Refused) != 0 {
					t.Errorf("%+v", r.Refused)
				}
			default:
				if !refused || r.Verdict() != healer.Abnormal {
					t.Errorf("%s, refused %+v", r.Verdict(), r.Refused)
				}
			}
		})
	}
}

// A step that is refused is asked about once, and blocks no other.
func TestAllOfThemAreRefused(t *testing.T) {
	w := newBatchFixture(t, 3)
	w.notes.refuse = errors.New("it is not wanted")
	r := w.heal(volume)
	if len(w.runs) != 0 || len(w.notes.before) != 0 || len(r.Refused) != 3 || r.Verdict() != healer.Abnormal {
		t.Errorf("%s after %v, %+v", r.Verdict(), w.runs, r.Refused)
	}
}

// Another volume on the same filesystem is healed: the whole call is over, and
// what was admitted is given back.
func TestOneOfThemIsBusy(t *testing.T) {
	w := newBatchFixture(t, 3)
	other := facts.Dev{Major: 8, Minor: 32}
	w.steps[2].Source = other
	occupy(w.fixture, key{superblock: other})
	mustBe(t, w.fixture, volume, healer.KindBusy, "running since")
	if len(w.runs) != 0 || len(w.notes.before) != 0 || w.notes.entered != 2 || len(w.notes.left) != 2 {
		t.Errorf("ran at %v, audited %v, %d permits of %d came back", w.runs, w.notes.before, len(w.notes.left), w.notes.entered)
	}
}

func TestNothingRunsTogetherWithoutAuditLines(t *testing.T) {
	w := newBatchFixture(t, 2)
	w.notes.broken = errors.New("disk full")
	r := w.heal(volume)
	if len(w.runs) != 0 || r.Verdict() != healer.Abnormal || len(r.Steps) != 2 || len(w.notes.left) != 2 {
		t.Fatalf("%s after %v, %+v", r.Verdict(), w.runs, r.Steps)
	}
	for i, o := range r.Steps {
		if !errors.Is(o.Err, w.notes.broken) || !errors.Is(w.notes.left[i], w.notes.broken) {
			t.Errorf("%+v, permit left with %v", o, w.notes.left[i])
		}
	}
}

func TestPanicInOneOfThem(t *testing.T) {
	w := newBatchFixture(t, 2)
	for i := range w.steps {
		w.steps[i].RunBatch = func(context.Context, []healer.Step, []func(context.Context) error) []error { panic("bug") }
	}
	if r, err := w.engine.Heal(context.Background(), volume); err == nil && r.Verdict() != healer.Abnormal {
		t.Errorf("%s", r.Verdict())
	}
	if len(w.notes.left) != 2 || w.notes.left[0] == nil || w.notes.left[1] == nil || len(w.notes.after) != 2 {
		t.Errorf("permits left with %v, audited %+v", w.notes.left, w.notes.after)
	}
	for _, e := range w.notes.after {
		if e.Outcome == "done" || e.Outcome == "" {
			t.Errorf("audited after the panic: %+v", e)
		}
	}
}

// The host first: what a container gets is a clone of what the host has.
func TestHostBeforeContainers(t *testing.T) {
	w := newBatchFixture(t, 2)
	w.fall(podA, healer.IOError)
	for i := range w.steps {
		w.steps[i].Refused = "the pod's mount point on the host is not healthy"
	}
	w.steps = append(w.steps, healer.Step{
		Name: "replace", MountPoint: healer.MountPoint{Role: healer.RoleTarget, Path: podA}, Cost: healer.Replace, Heals: []healer.Reason{healer.IOError}, Source: disk,
		Run: func(context.Context, func(context.Context) error) error {
			w.recover(podA)
			for i := range w.paths {
				w.steps[i].Refused = ""
			}
			return nil
		},
	})
	r := w.heal(volume)
	if got := outcomes(r); got != "replace replace-in-container replace-in-container" || r.Verdict() != healer.Healed || len(r.Refused) != 0 {
		t.Errorf("%s after %q, refused %+v", r.Verdict(), got, r.Refused)
	}
}
