package node

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// topAt returns what is mounted at a path.
func topAt(t *testing.T, n *Node, path string) facts.Mount {
	t.Helper()
	table, err := n.Mounts()
	done(t, err)
	stack := table.Stack(path)
	if len(stack) == 0 {
		t.Fatalf("nothing is mounted at %s", path)
	}
	return stack[0]
}

// beside makes a Look while another probe of the same storage is under way, for
// as long as it says, which then ends with what it found.
func beside(t *testing.T, n *Node, m, of facts.Mount, found Inspection, err error, since time.Duration) Inspection {
	t.Helper()
	at := begin(t, n.probes, of)
	at.began = at.began.Add(-since)
	type answer struct {
		in  Inspection
		err error
	}
	answers := make(chan answer)
	go func() {
		s, err := n.Inspect(context.Background(), InspectQuery{Probe: &m, Paths: []PathQuery{{Path: m.Path, Mounted: true}}})
		answers <- answer{s, err}
	}()
	eventually(t, "it waits for the other one", func() bool {
		stacks := make([]byte, 1<<20)
		return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "(*Node).share(")
	})
	n.probes.finish(storageOf(of), at, found, err)
	a := <-answers
	done(t, a.err)
	return a.in
}

// another asks of a mount that differs from this one.
func another(change func(*facts.Mount)) func(facts.Mount) facts.Mount {
	return func(m facts.Mount) facts.Mount { change(&m); return m }
}

// What another process found out about its own mount.
var (
	theySaw  = facts.ProbeFacts{UUID: "theirs"}
	noAnswer = Inspection{Answer: facts.Answer{Asked: true, TimedOut: true, Waits: []string{"f"}}}
)

var sharedAnswers = map[string]struct {
	of     func(facts.Mount) facts.Mount
	found  Inspection
	err    error
	shared bool
}{
	"of the same mount": {
		of:     another(func(*facts.Mount) {}),
		found:  Inspection{ProbeFacts: theySaw, Answer: facts.Answer{Asked: true}},
		shared: true,
	},
	"of the same volume": {
		of:     another(func(m *facts.Mount) { m.ID, m.Path = 1, "/elsewhere" }),
		found:  Inspection{ProbeFacts: theySaw, Answer: facts.Answer{Asked: true}},
		shared: true,
	},
	"an errno": {
		of:     another(func(*facts.Mount) {}),
		found:  Inspection{ProbeFacts: theySaw, Answer: facts.Answer{Asked: true, Op: "statx", Errno: syscall.ESTALE}},
		shared: true,
	},
	"of another directory": {
		of:    another(func(m *facts.Mount) { m.Root, m.FSType = "/sub", "ext4" }),
		found: Inspection{ProbeFacts: theySaw, Answer: facts.Answer{Asked: true, Errno: syscall.ESTALE}},
	},
	"of another export": {
		of:    another(func(m *facts.Mount) { m.Source = "srv:/b" }),
		found: Inspection{ProbeFacts: theySaw, Answer: facts.Answer{Asked: true, Errno: syscall.ESTALE}},
	},
	"of a write": {
		of:    another(func(m *facts.Mount) { *m = facts.Mount{Dev: m.Dev} }),
		found: Inspection{ProbeFacts: theySaw, Answer: facts.Answer{Asked: true, Op: "create", Errno: syscall.ENOSPC}},
	},
	"of what changed": {
		of:    another(func(m *facts.Mount) { m.ID, m.Path = 1, "/elsewhere" }),
		found: Inspection{ProbeFacts: theySaw, Changed: true, Answer: facts.Answer{Asked: true}},
	},
	"of no worker": {
		of:    another(func(*facts.Mount) {}),
		found: Inspection{ProbeFacts: theySaw},
		err:   errors.New("no worker"),
	},
	"no answer": {of: another(func(*facts.Mount) {}), found: noAnswer, err: worker.ErrTimeout, shared: true},
	"no answer of another": {
		of:     another(func(m *facts.Mount) { m.Root, m.FSType = "/sub", "ext4" }),
		found:  noAnswer,
		err:    worker.ErrTimeout,
		shared: true,
	},
	"no answer of a write": {
		of:     another(func(m *facts.Mount) { *m = facts.Mount{Dev: m.Dev} }),
		found:  noAnswer,
		err:    worker.ErrTimeout,
		shared: true,
	},
}

func TestAnswerIsShared(t *testing.T) {
	realKernel(t)
	for name, tc := range sharedAnswers {
		t.Run(name, func(t *testing.T) {
			n, root := newNode(t)
			put(t, root+"/m")
			t.Cleanup(func() { done(t, syscall.Unmount(root+"/m", 0)) })
			m := topAt(t, n, root+"/m")
			s := beside(t, n, m, tc.of(m), tc.found, tc.err, -time.Hour)
			theirs := s.UUID == "theirs" || slices.Equal(s.Answer.Waits, []string{"f"})
			if theirs != tc.shared || !s.Answer.Asked || !tc.shared && (s.Answer.Errno != 0 || s.Kind != facts.KindDirectory || s.Space.Blocks == 0) {
				t.Errorf("shared %v: %+v", theirs, s)
			}
			if l := s.Paths[m.Path]; !l.Inspected || s.Changed {
				t.Errorf("%+v", s)
			}
		})
	}
}

// What a probe met that began before the call is old news by the time it
// ends. That it got no answer is news.
func TestOldAnswerIsNotShared(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	put(t, root+"/m")
	t.Cleanup(func() { done(t, syscall.Unmount(root+"/m", 0)) })
	m := topAt(t, n, root+"/m")
	noAnswer := Inspection{Answer: facts.Answer{Asked: true, TimedOut: true}}
	if s := beside(t, n, m, m, noAnswer, worker.ErrTimeout, 0); !s.Answer.TimedOut {
		t.Errorf("noAnswer: %+v", s)
	}
	if s := beside(t, n, m, m, Inspection{ProbeFacts: facts.ProbeFacts{UUID: "theirs"}, Answer: facts.Answer{Asked: true}}, nil, 0); s.UUID == "theirs" || s.Space.Blocks == 0 {
		t.Errorf("an answer: %+v", s)
	}
}

// Who shares a call waits for as long as it may take, also where it was asked together with
// others first.
func TestSharedCallMayTakeItsTime(t *testing.T) {
	realKernel(t)
	n, root := newNode(t, func(c *Config) { c.ProbeTimeout = 3 * time.Second })
	put(t, root+"/m")
	t.Cleanup(func() { done(t, syscall.Unmount(root+"/m", 0)) })
	m := topAt(t, n, root+"/m")
	eventually(t, "a worker lives", func() bool {
		_, err := n.Inspect(context.Background(), InspectQuery{Paths: []PathQuery{{Path: root}}})
		return err == nil
	})
	call := begin(t, n.probes, m)
	call.began = time.Now().Add(time.Minute) // whoever comes now may share it
	time.AfterFunc(2*n.cfg.ProbeTimeout, func() {
		n.probes.finish(storageOf(m), call, Inspection{ProbeFacts: facts.ProbeFacts{UUID: "theirs"}, Answer: facts.Answer{Asked: true}}, nil)
	})
	if s := seen(t, n, m); s.Answer.TimedOut || s.UUID != "theirs" {
		t.Errorf("%+v", s)
	}
}

// A caller whose work is ended, as by a server that stops, has waited for no answer of the storage.
func TestCallerThatLeavesSaysNothingOfTheStorage(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	put(t, root+"/m")
	t.Cleanup(func() { done(t, syscall.Unmount(root+"/m", 0)) })
	m := topAt(t, n, root+"/m")
	call := begin(t, n.probes, m)
	defer n.probes.finish(storageOf(m), call, noAnswer, nil)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	s, err := n.Inspect(ctx, InspectQuery{Probe: &m, Paths: []PathQuery{{Path: m.Path + "/inside"}}})
	if !errors.Is(err, context.Canceled) || s.Answer.TimedOut {
		t.Errorf("timed out: %v, %v", s.Answer.TimedOut, err)
	}
}

// A caller that finds a stuck probe has its answer at once, and starts no worker.
func TestStuckProbeAnswersForAll(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	put(t, root+"/m")
	t.Cleanup(func() { done(t, syscall.Unmount(root+"/m", 0)) })
	m, ended := topAt(t, n, root+"/m"), make(stuckWorker)
	noAnswer := Inspection{Answer: facts.Answer{Asked: true, TimedOut: true, Stuck: true}}
	n.probes.finish(storageOf(m), begin(t, n.probes, m), noAnswer, ended)
	for range 3 {
		s, err := n.Inspect(context.Background(), InspectQuery{Probe: &m, Paths: []PathQuery{{Path: m.Path, Mounted: true}, {Path: m.Path + "/inside"}}})
		if err != nil || !s.Answer.Stuck || !s.Paths[m.Path].Inspected || !s.Paths[m.Path+"/inside"].Inspected {
			t.Errorf("%+v, %v", s, err)
		}
		if w, err := n.TryWrite(context.Background(), m, false); err != nil || w.Asked || !w.Unable {
			t.Errorf("a write beside it: %+v, %v", w, err)
		}
	}
	close(ended)
	if s, err := n.Inspect(context.Background(), InspectQuery{Probe: &m}); err != nil || s.Answer.TimedOut || s.Kind != facts.KindDirectory {
		t.Errorf("after it ended: %+v, %v", s, err)
	}
}

// All callers that meet an outstanding call, the one that began it too, learn which it is.
func TestOutstandingCall(t *testing.T) {
	n, root := impatient(t)
	end := hang(t, root+"/hung")
	m, first := topAt(t, n, root+"/hung"), time.Now()
	began := seen(t, n, m).Answer.Outstanding
	if began.Before(first) || time.Since(began) < n.cfg.ProbeTimeout {
		t.Errorf("outstanding since %s", began)
	}
	if again := seen(t, n, m).Answer.Outstanding; !again.Equal(began) {
		t.Errorf("%s, and then %s", began, again)
	}
	end()
	eventually(t, "the worker ends", func() bool { return n.cfg.Pool.Stats().Abandoned == 0 })
	p := newProbes()
	for _, err := range []error{nil, worker.ErrTimeout, worker.ErrStuck} { // the last of another storage's call
		at := begin(t, p, m)
		p.finish(storageOf(m), at, Inspection{Answer: facts.Answer{Asked: true, TimedOut: true}}, err)
		if !at.found.Answer.Outstanding.IsZero() {
			t.Errorf("%v: outstanding since %s", err, at.found.Answer.Outstanding)
		}
	}
}

// A caller whose own time is over does not know whether the storage answers, and
// shares nothing.
func TestCutOffProbeTellsNothing(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	put(t, root+"/m")
	t.Cleanup(func() { done(t, syscall.Unmount(root+"/m", 0)) })
	m := topAt(t, n, root+"/m")
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if s, err := n.Inspect(over, InspectQuery{Probe: &m}); err == nil || s.Answer.TimedOut {
		t.Errorf("inspect: %+v, %v", s, err)
	}
	if w, err := n.TryWrite(over, m, false); err == nil || w.TimedOut {
		t.Errorf("write: %+v, %v", w, err)
	}
	for want, err := range map[error]bool{worker.ErrTimeout: false, worker.ErrStuck: true, worker.ErrLost: false} {
		if timedOut(over, want) != err {
			t.Errorf("%v, cut off: %v", want, !err)
		}
	}
	if late := (lateContext{context.Background()}); timedOut(late, worker.ErrTimeout) || !errors.Is(inTime(late, worker.ErrTimeout), context.DeadlineExceeded) {
		t.Error("the end of the caller's time counts as the storage's silence, before the caller is told of it")
	}
	if !timedOut(context.Background(), worker.ErrTimeout) || timedOut(context.Background(), worker.ErrLost) || timedOut(context.Background(), nil) {
		t.Error("not cut off")
	}
}

// lateContext is over and was not told so, as where its timer stands still.
type lateContext struct{ context.Context }

func (lateContext) Deadline() (time.Time, bool) { return time.Now(), true }

// The mount tells the device of no raw block volume: while that does not answer, its last answer does.
func TestDeviceWithoutAnswer(t *testing.T) {
	n, root := newNode(t)
	sdb := facts.Dev{Major: 8, Minor: 16}
	n.rdevs.add(rdevKeyOf(facts.Mount{Dev: facts.Dev{Minor: 61}, FSType: "btrfs", Source: "/dev/sdb"}), sdb)
	next := facts.Mount{Path: root + "/a", Dev: facts.Dev{Minor: 61}, FSType: "btrfs", Root: "/", Source: "/dev/sdc"}
	if in, err := n.withoutAnswer(t.Context(), InspectQuery{Probe: &next}, noAnswer); err != nil || !in.Rdev.Zero() {
		t.Errorf("a btrfs that got the number of another: %+v, %v", in, err)
	}
	for name, tc := range map[string]struct {
		mount facts.Mount
		want  facts.Dev
	}{
		"raw block volume":             {facts.Mount{Path: root + "/a", Dev: facts.Dev{Minor: 5}, FSType: "devtmpfs", Root: "/sdb"}, sdb},
		"btrfs":                        {facts.Mount{Path: root + "/a", Dev: facts.Dev{Minor: 60}, FSType: "btrfs", Root: "/"}, sdb},
		"FUSE with a number of before": {facts.Mount{Path: root + "/a", Dev: facts.Dev{Minor: 60}, FSType: "fuse.x", Root: "/"}, facts.Dev{}},
	} {
		n.rdevs.add(rdevKeyOf(tc.mount), sdb)
		in, err := n.withoutAnswer(t.Context(), InspectQuery{Probe: &tc.mount}, noAnswer)
		if err != nil || in.Rdev != tc.want || !in.Answer.TimedOut || in.Kind != facts.KindNone {
			t.Errorf("%s: %+v, %v", name, in, err)
		}
	}
}
