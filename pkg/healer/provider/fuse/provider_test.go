package fuse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

var (
	lives   = facts.FUSEDaemons{Processes: []facts.FUSEDaemon{rclone()}}
	kept    = facts.FUSEDaemons{Processes: []facts.FUSEDaemon{{PID: 1, Command: "systemd", State: 'S'}}}
	dead    = facts.Answer{Asked: true, Op: "statx", Errno: syscall.ENOTCONN}
	longAgo = silence{mount: 8, probes: 3, last: time.Unix(100, 0), timeout: 5 * time.Second, first: time.Unix(50, 0)}
)

func inState(state byte) facts.FUSEDaemons {
	d := rclone()
	d.State = state
	return facts.FUSEDaemons{Processes: []facts.FUSEDaemon{d}}
}

// rcloneOf is an rclone of no pod, in this cgroup.
func rcloneOf(command, cgroup string) connection {
	d := rclone()
	d.Command, d.Workload = command, facts.Workload{Dir: cgroup}
	return connection{daemons: facts.FUSEDaemons{Processes: []facts.FUSEDaemon{d}}}
}

// recordedAt returns a case with a record of the superblock at a path.
func recordedAt(path string, c healer.Case) healer.Case {
	c.Record = &healer.Record{MountPoints: []healer.MountPointRecord{{Path: path, Dev: served}}}
	for i := range c.MountPoints {
		c.MountPoints[i].Want = c.Record.MountPoint(c.MountPoints[i].Path)
	}
	return c
}

var conditionCases = map[string]struct {
	c      healer.Case
	of     connection
	reason healer.Reason
	says   []string
}{
	"gone": {
		c:      answers(dead),
		reason: healer.DaemonGone,
		says:   []string{"no process has FUSE connection 52 open any more"},
	},
	"gone, not all seen": {
		c:      answers(dead),
		of:     connection{daemons: facts.FUSEDaemons{Unseen: 1}},
		reason: healer.DaemonGone,
		says:   []string{"no process that could be examined has FUSE"},
	},
	"aborted":         {c: answers(facts.Answer{Asked: true, Errno: syscall.ECONNABORTED}), reason: healer.DaemonGone},
	"dead, and lives": {c: answers(dead), of: connection{daemons: lives}},
	"dead, untold":    {c: answers(dead), of: connection{daemons: facts.FUSEDaemons{Untold: true}}},
	"dead, not all":   {c: answers(dead), of: connection{daemons: facts.FUSEDaemons{Cut: true}}},
	"no storage": {
		c:      lookedUp(facts.Lookup{Asked: true, Errno: syscall.EIO}),
		of:     connection{daemons: lives},
		reason: healer.BackendUnreachable,
		says:   []string{"process 4711 rclone", "EIO"},
	},
	"no storage in time": {
		c:      lookedUp(facts.Lookup{Asked: true, TimedOut: true, Within: time.Second}),
		of:     connection{daemons: lives},
		reason: healer.BackendUnreachable,
		says:   []string{"no answer within 1s"},
	},
	"no storage, untold": {
		c:      lookedUp(facts.Lookup{Asked: true, Errno: syscall.EIO}),
		of:     connection{daemons: facts.FUSEDaemons{Untold: true}},
		reason: healer.BackendUnreachable,
		says:   []string{"does not tell which daemon"},
	},
	"stopped": {
		c:      silent(),
		of:     connection{daemons: inState('T'), before: 4, after: 4},
		reason: healer.DaemonStopped,
		says:   []string{"process 4711 rclone (state T, since 2001-09-09T02:46:40Z, pod p-1 container abcdef012345), is stopped (SIGSTOP); 4 requests wait", "kill -CONT 4711"},
	},
	"traced": {
		c:      silent(),
		of:     connection{daemons: inState('t')},
		reason: healer.DaemonStopped,
		says:   []string{"by a debugger"},
	},
	"one of two is stopped": {
		c:      silent(),
		of:     connection{daemons: facts.FUSEDaemons{Processes: append(inState('T').Processes, rclone())}},
		reason: healer.DaemonHung,
		says:   []string{"(state T,", "and process 4711 rclone (state S,"},
	},
	"hung": {
		c:      silent(),
		of:     connection{daemons: lives, before: 2, after: 2},
		reason: healer.DaemonHung,
		says:   []string{"the daemon of FUSE connection 52, process 4711 rclone", "does not answer; 2 requests wait, and none was answered within 100ms", "pod p-1 container abcdef012345), does not answer"},
	},
	"never answered, and its number was that of another pod's": {
		c:      recordedAt("/k/pods/b/mount", owes(time.Time{})),
		of:     connection{daemons: lives, before: 2, after: 2},
		reason: healer.DaemonHung,
		says:   []string{"a sidecar's is not before the pod's containers", "end no process"},
	},
	"answered before": {
		c:      recordedAt(published, owes(time.Time{})),
		of:     connection{daemons: lives, before: 2, after: 2},
		reason: healer.DaemonHung,
		says:   []string{"none was answered within 100ms", "what the daemon waits for"},
	},
	"hung, drains": {
		c:      silent(),
		of:     connection{daemons: lives, before: 2, after: 1},
		reason: healer.DaemonHung,
		says:   []string{"2 requests waited, and after 100ms 1"},
	},
	"hung, none wait": {
		c:      silent(),
		of:     connection{daemons: lives},
		reason: healer.DaemonHung,
		says:   []string{"it is not known how many requests wait"},
	},
	"hung, no fusectl": {
		c:      silent(),
		of:     connection{daemons: lives, before: -1, after: -1},
		reason: healer.DaemonHung,
		says:   []string{"it is not known how many requests wait"},
	},
	"hung, a unit": {
		c:      silent(),
		of:     rcloneOf("rclone", "/system.slice/rclone@a.service"),
		reason: healer.DaemonHung,
		says:   []string{"rclone@a.service)"},
	},
	"hung, untold": {
		c:      silent(),
		of:     connection{daemons: facts.FUSEDaemons{Untold: true}},
		reason: healer.DaemonHung,
		says:   []string{"the kernel does not tell which daemon serves FUSE connection 52"},
	},
	"hung, no one": {
		c:      silent(),
		of:     connection{daemons: facts.FUSEDaemons{Unseen: 1}},
		reason: healer.DaemonHung,
		says:   []string{"no process that could be examined has FUSE connection 52 open"},
	},
	"names that fool": {
		c:      silent(),
		of:     rcloneOf("x\n\x1b[2J), healthy", "/system.slice/y\n; rm.service"),
		reason: healer.DaemonHung,
		says:   []string{"process 4711 x??"},
	},
}

func TestConditions(t *testing.T) {
	for name, tc := range conditionCases {
		t.Run(name, func(t *testing.T) {
			f := examine(t, New(&node{}, nil, false), seen(tc.c, tc.of))
			if tc.reason == "" {
				if len(f.Conditions) > 0 {
					t.Errorf("found %+v", f.Conditions)
				}
				return
			}
			if len(f.Conditions) != 1 || f.Conditions[0].Reason != tc.reason {
				t.Fatalf("found %+v, want %s", f.Conditions, tc.reason)
			}
			cond := f.Conditions[0]
			if cond.Status != healer.Inaccessible || cond.MountPoint != published || cond.Superblock != served || cond.Acute || len(f.Steps) > 0 {
				t.Errorf("%+v, %d steps", cond, len(f.Steps))
			}
			for _, says := range tc.says {
				if text := cond.Message + "\n" + cond.Advice; !strings.Contains(text, says) {
					t.Errorf("%q lacks %q", text, says)
				}
			}
		})
	}
}

// The servers of a daemon that cannot ask its storage, or hangs, are named, the silent ones alone.
func TestServers(t *testing.T) {
	works := facts.Peer{Address: "10.0.0.5:443", Connected: true}
	lost := facts.Peer{Address: "10.0.0.6:443", Connected: true, Retransmits: 3}
	refuses := facts.Peer{Address: "[fd00::7]:443", Retransmits: 2}
	slow := facts.Peer{Address: "10.0.0.9:443", Connected: true, Retransmits: 1}
	begun := facts.Peer{Address: "10.0.0.8:443"}
	for name, tc := range map[string]struct {
		c     healer.Case
		peers []facts.Peer
		says  string
	}{
		"EIO": {
			c:     lookedUp(facts.Lookup{Asked: true, Errno: syscall.EIO}),
			peers: []facts.Peer{lost, works},
			says:  "from memory; its server 10.0.0.6:443 has not answered (3 retransmits)",
		},
		"no answer": {
			c:     lookedUp(facts.Lookup{Asked: true, TimedOut: true}),
			peers: []facts.Peer{refuses},
			says:  "from memory; its server [fd00::7]:443 has not answered (2 retransmits)",
		},
		"hangs": {
			c:     silent(),
			peers: []facts.Peer{lost, refuses},
			says:  "within 100ms; its server 10.0.0.6:443 has not answered (3 retransmits); its server [fd00::7]:443 has not answered (2 retransmits)",
		},
		"none is silent": {
			c:     silent(),
			peers: []facts.Peer{slow, begun, works},
			says:  "within 100ms; it is connected to 10.0.0.9:443, 10.0.0.5:443",
		},
		"a connection begun": {c: silent(), peers: []facts.Peer{begun}, says: "within 100ms"},
		"none":               {c: silent(), says: "within 100ms"},
	} {
		connected := lives
		connected.Peers = tc.peers
		f := collect(t, New(&node{daemons: connected, waiting: []int{2}}, nil, false), tc.c)
		if len(f.Conditions) != 1 || !strings.HasSuffix(f.Conditions[0].Message, tc.says) {
			t.Errorf("%s: %+v, want %q", name, f.Conditions, tc.says)
		}
	}
}

// A healthy volume, one of another kind, and one that the driver has staged anew cost
// nothing.
func TestCollectAsksOnlyWhereItHelps(t *testing.T) {
	outlived := answers(dead)
	outlived.MountPoints[1].Stack = []facts.Mount{{Path: staged, Dev: facts.Dev{Minor: 53}, FSType: "fuse.rclone"}}
	outlived.Superblocks[facts.Dev{Minor: 53}] = healer.Superblock{Dev: facts.Dev{Minor: 53}, FSType: "fuse.rclone", Answer: facts.Answer{Asked: true}}
	disk := silent()
	disk.Superblocks[served] = healer.Superblock{Dev: served, FSType: "ext4", Answer: facts.Answer{Asked: true, TimedOut: true}}
	for name, tc := range map[string]struct {
		c     healer.Case
		asked int
	}{
		"healthy":     {healthy(), 0},
		"staged anew": {outlived, 0},
		"a disk":      {disk, 0},
		"an errno":    {answers(facts.Answer{Asked: true, Errno: syscall.EIO}), 0},
		"dead":        {answers(dead), 1},
		"hung":        {silent(), 1},
	} {
		n := &node{daemons: lives, waiting: []int{2}}
		if _, err := New(n, nil, true).Collect(t.Context(), tc.c); err != nil || n.asked != tc.asked {
			t.Errorf("%s: asked %d times, want %d; %v", name, n.asked, tc.asked, err)
		}
	}
}

type writtenAt time.Time

func (w writtenAt) Inputs(context.Context, healer.Case) (healer.StageInputs, error) {
	return healer.StageInputs{Written: time.Time(w)}, nil
}

// A daemon that was started before its Secret was changed goes by the old one: it is named, and
// no step acts on that.
func TestBackendUnreachableAfterAChange(t *testing.T) {
	c := lookedUp(facts.Lookup{Asked: true, Errno: syscall.EIO})
	started := c.BootTime.Add(rclone().Started)
	for _, tc := range []struct {
		written time.Time
		want    bool
	}{{time.Time{}, false}, {started.Add(-time.Second), false}, {started.Add(time.Second), true}} {
		f := collect(t, New(&node{daemons: lives}, writtenAt(tc.written), true), c)
		if said := strings.Contains(f.Conditions[0].Advice, "after process 4711 was started"); said != tc.want || len(f.Steps) > 0 || f.Conditions[0].Acute {
			t.Errorf("written at %s: %+v", tc.written, f)
		}
		if f = collect(t, New(&node{daemons: kept}, writtenAt(tc.written), true), c); f.Conditions[0].Advice != adviceStorage {
			t.Errorf("process 1, which goes by nothing, written at %s: %s", tc.written, f.Conditions[0].Advice)
		}
	}
}

func TestCollectReturnsWhyItCannotTell(t *testing.T) {
	n := &node{err: errors.New("no worker"), waiting: []int{2}}
	for _, c := range []healer.Case{silent(), answers(dead)} {
		if got, err := New(n, nil, false).Collect(t.Context(), c); !errors.Is(err, n.err) || got != nil {
			t.Errorf("%v, %v", got, err)
		}
	}
}

// A daemon is hung after several probes without an answer, and never one that answers
// something, is stopped, or has mounts of others.
func TestAbortConnection(t *testing.T) {
	n := &node{daemons: lives, waiting: []int{2}}
	p, c := New(n, nil, true), silent()
	sb := c.Superblocks[served]
	sb.Answer.Elapsed = 0
	c.Superblocks[served] = sb
	for i := range 2 {
		f := collect(t, p, c)
		if len(f.Steps) != 1 || !strings.Contains(f.Steps[0].Refused, fmt.Sprintf("%d probes within ", i+1)) || !f.Conditions[0].Acute {
			t.Fatalf("after %d probes %+v", i+1, f)
		}
	}
	f := collect(t, p, c)
	if s := f.Steps[0]; s.Refused != "" || s.Source != served || s.Cost != healer.Reconnect || s.MountPoint.Path != published || s.Writes {
		t.Fatalf("%+v", s)
	}
	refused := errors.New("not now")
	if err := f.Steps[0].Run(t.Context(), func(context.Context) error { return refused }); !errors.Is(err, refused) || len(n.aborted) > 0 {
		t.Errorf("not permitted: %v, aborted %v", err, n.aborted)
	}
	if err := f.Steps[0].Run(t.Context(), func(context.Context) error { return nil }); err != nil || len(n.aborted) != 1 {
		t.Fatalf("%v, aborted %v", err, n.aborted)
	}
	plan := n.aborted[0]
	if plan.Mount.Path != published || !slices.Equal(plan.Paths, []string{published, staged, "/k/pods/b/mount"}) || !slices.Equal(plan.Pods, []string{"a"}) {
		t.Errorf("aborted %+v", plan)
	}

	// Another volume has the connection, too.
	n.mayAbort = fmt.Errorf("%w: also mounted on /x", healer.ErrRefused)
	if s := collect(t, p, c).Steps[0]; !strings.Contains(s.Refused, "also mounted on /x") {
		t.Errorf("%+v", s)
	}
	n.mayAbort = errors.New("no worker")
	if s := collect(t, p, c).Steps[0]; !strings.Contains(s.Refused, "it cannot be told whether") {
		t.Errorf("%+v", s)
	}
	n.mayAbort = nil

	// It answers something: all begins anew.
	n.waiting = []int{2, 1, 1}
	if s := collect(t, p, c).Steps[0]; !strings.Contains(s.Refused, "the daemon answers requests") {
		t.Errorf("%+v", s)
	}
	if s := collect(t, p, c).Steps[0]; !strings.Contains(s.Refused, "1 probes within 0s had no answer") {
		t.Errorf("%+v", s)
	}
	collect(t, p, c)
	collect(t, p, healthy())
	if s := collect(t, p, c).Steps[0]; !strings.Contains(s.Refused, "1 probes within 0s had no answer") {
		t.Errorf("%+v", s)
	}
	n.daemons = inState('T')
	for range 4 {
		if f := collect(t, p, c); len(f.Steps) > 0 || f.Conditions[0].Acute {
			t.Errorf("a stopped one: %+v", f)
		}
	}
}

// A daemon that answers every call, however late, is never aborted; nor is one of which
// that cannot be told.
func TestNoAbortOfASlowDaemon(t *testing.T) {
	slow := func(i int) healer.Case { return owes(time.Unix(int64(100+i), 0)) }
	for name, tc := range map[string]struct {
		c       func(i int) healer.Case
		waiting int
		says    string
	}{
		"answers each call": {slow, 1, "the daemon may only be slow: 1 probes within 0s"},
		"the call can be ended": {
			func(int) healer.Case { return owes(time.Time{}) }, 1, "no probe still waits for its answer",
		},
		"no fusectl": {func(int) healer.Case { return silent() }, -1, "fusectl does not tell how many wait"},
	} {
		n := &node{daemons: lives, waiting: []int{tc.waiting}}
		p := New(n, nil, true)
		for i := range 5 {
			c := tc.c(i)
			sb := c.Superblocks[served]
			sb.Answer.Elapsed = 0
			c.Superblocks[served] = sb
			if s := collect(t, p, c).Steps[0]; !strings.Contains(s.Refused, tc.says) {
				t.Errorf("%s, call %d: refused %q", name, i, s.Refused)
			}
		}
	}
}

// A stopped daemon looks hung where it cannot be told which process it is.
func TestNoAbortOfADaemonThatIsNotFound(t *testing.T) {
	one := lives.Processes
	for name, daemons := range map[string]facts.FUSEDaemons{
		"an older kernel": {Untold: true},
		"not all":         {Processes: one, Cut: true},
		"one unseen":      {Processes: one, Unseen: 1},
		"no one":          {},
	} {
		f := examine(t, New(&node{}, nil, true), seen(silent(), connection{daemons: daemons, before: 1, after: 1, silent: longAgo}))
		if s := f.Steps[0]; s.Refused != "it cannot be told whether the daemon is merely stopped" {
			t.Errorf("%s: refused %q", name, s.Refused)
		}
	}
	if s := examine(t, New(&node{}, nil, true), seen(silent(), connection{daemons: kept, before: 1, after: 1, silent: longAgo})).Steps[0]; !strings.Contains(s.Refused, "process 1 keeps") {
		t.Errorf("it is to be started anew: refused %q", s.Refused)
	}
	if s := examine(t, New(&node{}, nil, true), seen(silent(), connection{daemons: lives, before: 1, after: 1, silent: longAgo})).Steps[0]; s.Refused != "" {
		t.Errorf("it is found, and runs: refused %q", s.Refused)
	}
}

// Paths that only the caller says are the volume's are not in the plan, and so refused.
func TestAbortPlanHasOnlyWhatIsProven(t *testing.T) {
	c := silent()
	c.MountPoints[0].Proven = false
	if plan := planAbort(c, c.MountPoints[0]); slices.Contains(plan.Paths, published) || len(plan.Pods) > 0 {
		t.Errorf("%+v", plan)
	}
}

func TestSilence(t *testing.T) {
	start := time.Unix(1000, 0)
	a := facts.Answer{TimedOut: true, Stuck: true, Outstanding: start, Elapsed: 5 * time.Second}
	type observed struct {
		mount  uint64
		answer facts.Answer
		now    time.Time
	}
	after := func(d time.Duration) observed { return observed{mount: 7, answer: a, now: start.Add(d)} }
	writing := after(time.Minute)
	writing.answer.Writing = true
	other := after(time.Minute)
	other.mount = 8
	answered := after(time.Minute)
	answered.answer.Outstanding = start.Add(31 * time.Second)
	ended := after(5 * time.Second)
	ended.answer.Stuck, ended.answer.Outstanding = false, time.Time{}
	for name, tc := range map[string]struct {
		seen []observed
		long bool
	}{
		"three":                 {[]observed{after(0), after(25 * time.Second), after(50 * time.Second)}, true},
		"two":                   {[]observed{after(0), after(time.Minute)}, false},
		"three in a moment":     {[]observed{after(0), after(0), after(49 * time.Second)}, false},
		"long pauses":           {[]observed{after(0), after(time.Hour), after(2 * time.Hour)}, false},
		"reads were answered":   {[]observed{after(0), after(30 * time.Second), writing}, false},
		"of another superblock": {[]observed{after(0), after(30 * time.Second), other}, false},
		"slow: it answered one": {[]observed{after(0), after(30 * time.Second), answered}, false},
		"none is outstanding":   {[]observed{ended, ended, ended, ended}, false},
		"one is not known":      {[]observed{after(0), ended, after(time.Minute), after(61 * time.Second)}, false},
	} {
		var s silence
		for _, o := range tc.seen {
			s = s.next(o.mount, o.answer, false, o.now)
		}
		if s.long() != tc.long {
			t.Errorf("%s: long %v, %+v", name, s.long(), s)
		}
	}
}

func TestConformance(t *testing.T) {
	sick := map[string]func() healer.Case{
		"gone":      func() healer.Case { return seen(answers(dead), connection{}) },
		"stopped":   func() healer.Case { return seen(silent(), connection{daemons: inState('T'), before: 1, after: 1}) },
		"hung":      func() healer.Case { return seen(silent(), connection{daemons: lives, before: 1, after: 1}) },
		"hung long": func() healer.Case { return seen(silent(), connection{daemons: lives, silent: longAgo}) },
		"hung, shared": func() healer.Case {
			return seen(silent(), connection{daemons: lives, silent: longAgo, shared: "also mounted on /x"})
		},
		"many": func() healer.Case {
			return seen(silent(), connection{daemons: facts.FUSEDaemons{Processes: slices.Repeat(lives.Processes, 1000)}})
		},
	}
	for _, abort := range []bool{false, true} {
		n := &node{daemons: lives, waiting: []int{2}}
		providertest.Run(t, New(n, nil, abort), providertest.Cases{Healthy: healthy, Sick: sick, Acts: func() int { return len(n.aborted) }})
	}
}
