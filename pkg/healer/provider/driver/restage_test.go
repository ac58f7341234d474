package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

var fuseDev = facts.Dev{Minor: 50}

// dead is a staged FUSE volume whose daemon has died.
func dead() healer.Case {
	c := healthy()
	c.Volume.Capability = &healer.Capability{Access: healer.AccessMount, AccessMode: "MULTI_NODE_MULTI_WRITER"}
	c.Superblocks = map[facts.Dev]healer.Superblock{fuseDev: {
		Dev: fuseDev, FSType: "fuse.x", Source: "bucket", Answer: facts.Answer{Asked: true, Errno: syscall.ENOTCONN},
	}}
	for i := range c.MountPoints {
		p := &c.MountPoints[i]
		p.Stack = []facts.Mount{{Dev: fuseDev, Path: p.Path, FSType: "fuse.x", Source: "bucket"}}
	}
	c.MountPoints[1].Layout = layout.Path{Kind: layout.Staging, Base: staged}
	for _, reason := range []healer.Reason{healer.Disconnected, healer.DaemonGone} {
		c.Found = append(c.Found, healer.Condition{Status: healer.Inaccessible, Reason: reason, MountPoint: published, Superblock: fuseDev, Message: "it is gone"})
	}
	c.Record = &healer.Record{FSType: "fuse.x", Source: "bucket"}
	return c
}

// fakeHost is a node with one staging path.
type fakeHost struct {
	daemons facts.FUSEDaemons
	// missed is how many looks find no daemon, look what one finds where that changes.
	missed int
	look   func() facts.FUSEDaemons
	// mounting is who is about to mount something, notTold why that is not known. They are of the
	// pod of the driver's process, if that is not 0.
	mounting []facts.FUSEDaemon
	driver   int
	notTold  error
	// mounted is what is there: empty, "dead", "new".
	mounted string
	acts    []string
	// stuck is why nothing can be mounted there.
	stuck error
	// asked is until when the gate had to answer, toMount how long after that the mount there may take.
	asked   time.Time
	toMount time.Duration
}

func (h *fakeHost) FUSEDaemons(context.Context, facts.Dev) (facts.FUSEDaemons, error) {
	if h.missed--; h.missed >= 0 {
		return facts.FUSEDaemons{}, nil
	}
	if h.look != nil {
		return h.look(), nil
	}
	return h.daemons, nil
}

func (h *fakeHost) Mounting(_ context.Context, _ []string, _ time.Duration, driver int) ([]facts.FUSEDaemon, error) {
	if h.driver != 0 && h.driver != driver {
		return nil, h.notTold
	}
	return h.mounting, h.notTold
}

func (h *fakeHost) UnmountDead(ctx context.Context, _ string, _ []facts.Mount, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	h.acts, h.mounted = append(h.acts, "unmount"), ""
	return nil
}

func (h *fakeHost) MountDead(ctx context.Context, _ string, _ facts.Mount, place bool) (placed, changed bool, err error) {
	until, _ := ctx.Deadline()
	h.toMount = until.Sub(h.asked)
	if h.stuck != nil {
		return false, false, h.stuck
	}
	if h.mounted == "" && place {
		h.acts, h.mounted = append(h.acts, "mount-dead"), "dead"
		return true, false, nil
	}
	return false, h.mounted == "new", nil
}

// staging serves a driver that stages as told, for a provider with the order.
func stagingDriver(t *testing.T, order healer.RestageOrder, stage func(h *fakeHost) error) (*Provider, *fakeHost, *fake) {
	t.Helper()
	h, f := &fakeHost{mounted: "dead"}, newFake()
	f.capabilities = append(f.capabilities, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	f.stage = func(context.Context) error {
		h.acts = append(h.acts, "stage")
		return stage(h)
	}
	p := f.serve(t)
	p.cfg.Host, p.cfg.DriverTimeout = h, time.Minute
	p.cfg.Stager = NewFromCall(map[string]healer.RestageOrder{driverName: order})
	return p, h, f
}

// mounts is a driver that does what it is told.
func mounts(h *fakeHost) error { h.mounted = "new"; return nil }

// restageStep is the step that is offered for a case.
func restageStep(t *testing.T, p *Provider, c healer.Case) healer.Step {
	t.Helper()
	found, err := p.Examine(with(c, collect(t, p, c)))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(found.Steps, func(s healer.Step) bool { return s.Name == StepRestage })
	if i < 0 {
		return healer.Step{}
	}
	return found.Steps[i]
}

var errInternal = status.Error(codes.Internal, "transport endpoint is not connected")

// overDead mounts, but fails where the dead mount still stands.
func overDead(err error) func(*fakeHost) error {
	return func(h *fakeHost) error {
		if h.mounted == "dead" {
			return err
		}
		return mounts(h)
	}
}

var restages = map[string]struct {
	order healer.RestageOrder
	stage func(*fakeHost) error
	acts  string
	says  string
	left  string
}{
	"over the dead mount": {order: healer.StageFirst, stage: mounts, acts: "stage", left: "new"},
	"refused there": {
		order: healer.StageFirst,
		stage: overDead(errInternal),
		acts:  "stage unmount stage",
		left:  "new",
	},
	"no precondition": {
		order: healer.StageFirst,
		stage: overDead(status.Error(codes.FailedPrecondition, "")),
		acts:  "stage unmount stage",
		left:  "new",
	},
	"refused for more": {
		order: healer.StageFirst,
		stage: overDead(status.Error(codes.NotFound, "")),
		acts:  "stage",
		says:  "NodeStageVolume: NOT_FOUND",
		left:  "dead",
	},
	"nothing done": {
		order: healer.StageFirst,
		stage: overDead(nil),
		acts:  "stage",
		says:  "RestageHadNoEffect",
		left:  "dead",
	},
	"unmounted first": {order: healer.UnmountFirst, stage: mounts, acts: "unmount stage", left: "new"},
	"unmounted for nothing": {
		order: healer.UnmountFirst,
		stage: func(*fakeHost) error { return errInternal },
		acts:  "unmount stage mount-dead",
		says:  "NodeStageVolume: INTERNAL",
		left:  "dead",
	},
	"unmounted, no effect": {
		order: healer.UnmountFirst,
		stage: func(*fakeHost) error { return nil },
		acts:  "unmount stage mount-dead",
		says:  "RestageHadNoEffect",
		left:  "dead",
	},
	"late": {
		order: healer.UnmountFirst,
		stage: func(h *fakeHost) error { h.mounted = "new"; return errInternal },
		acts:  "unmount stage",
		says:  "NodeStageVolume: INTERNAL",
		left:  "new",
	},
}

func TestRestage(t *testing.T) {
	for name, tc := range restages {
		t.Run(name, func(t *testing.T) {
			p, h, _ := stagingDriver(t, tc.order, tc.stage)
			s := restageStep(t, p, dead())
			if s.Refused != "" || s.Run == nil {
				t.Fatalf("%+v", s)
			}
			err := s.Run(t.Context(), func(context.Context) error { return nil })
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("it fails with %v", err)
			}
			if got := strings.Join(h.acts, " "); got != tc.acts || h.mounted != tc.left {
				t.Errorf("it did %q, and left %q", got, h.mounted)
			}
		})
	}
}

// A driver that answers UNKNOWN, as those written in Go do for every failure, is told again.
func TestRestageIsTriedAgainAfterUnknown(t *testing.T) {
	for _, answer := range []error{errors.New("mount: exit status 1"), status.Error(codes.Unknown, "the key is wrong"), status.Error(99, "")} {
		p, _, _ := stagingDriver(t, healer.UnmountFirst, func(*fakeHost) error { return answer })
		err := restageStep(t, p, dead()).Run(t.Context(), func(context.Context) error { return nil })
		if class := healer.Classify(err); err == nil || class.Tier != api.Retriable || class.Type == api.TypePermission {
			t.Errorf("%v is %v", err, class)
		}
	}
}

// A driver at whose socket nobody listens was not told, and nothing was changed.
func TestRestageMeetsNobody(t *testing.T) {
	for _, nobody := range []error{syscall.ECONNREFUSED, syscall.ENOENT} {
		p, h, _ := stagingDriver(t, healer.UnmountFirst, mounts)
		s := restageStep(t, p, dead())
		p.tools.(*providertest.Tools).Sockets[csiSocket] = func(context.Context) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: nobody}
		}
		err := s.Run(t.Context(), func(context.Context) error { return nil })
		if !errors.Is(err, healer.ErrDriverAway) || len(h.acts) > 0 {
			t.Errorf("it did %q and fails with %v", h.acts, err)
		}
	}
}

// A driver that hung is told at once when it was started anew.
func TestRestageAfterSilence(t *testing.T) {
	p, _, _ := stagingDriver(t, healer.UnmountFirst, mounts)
	s := restageStep(t, p, dead())
	p.memory.leaveAlone(csiSocket)
	if err := s.Run(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}

// A driver that may be at work on an earlier call is not called a second time: where the path is
// bare, it does not stay so.
func TestRestageWaits(t *testing.T) {
	pending := func(c *healer.Case, _ *fakeHost) { c.Record.PendingStage = healer.PendingCall{Calls: 1} }
	for name, tc := range map[string]struct {
		change func(*healer.Case, *fakeHost)
		says   string
	}{
		"no answer": {change: pending, says: "may still be at work since"},
		"NodeHealer": {
			change: func(c *healer.Case, _ *fakeHost) { c.Record.PendingHeal = healer.PendingCall{Calls: 1} },
			says:   "may still be at work since",
		},
		"a daemon": {
			change: func(_ *healer.Case, h *fakeHost) { h.mounting = []facts.FUSEDaemon{{PID: 7, Command: "geesefs"}} },
			says:   "process 7 (geesefs) has the staging path in its arguments",
		},
		"it is unknown": {
			change: func(_ *healer.Case, h *fakeHost) { h.notTold = errors.New("it took too long") },
			says:   "it took too long",
		},
		"switched off": {says: "is not switched on"},
	} {
		for _, bare := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bare: %v", name, bare), func(t *testing.T) {
				t.Parallel()
				p, h, f := stagingDriver(t, healer.UnmountFirst, mounts)
				c := dead()
				c.Record.Restaging = true
				if tc.change == nil {
					p.cfg.Stager = NewFromCall(nil)
				} else {
					tc.change(&c, h)
				}
				want := ""
				if bare {
					c.MountPoints[1].Stack, h.mounted, want = nil, "", "mount-dead"
				}
				s := restageStep(t, p, c)
				why := s.Refused
				if bare && s.Run != nil {
					why = fmt.Sprint(s.Run(t.Context(), allowed))
				}
				if got := strings.Join(h.acts, " "); !strings.Contains(why, tc.says) || got != want || f.count("NodeStageVolume") > 0 {
					t.Errorf("it says %q and did %q", why, got)
				}
			})
		}
	}
}

// The check connected to no process of the driver, so of no pod it was known that its processes
// count: the one that the step connects to tells.
func TestRestageLooksInThePodThatItConnectsTo(t *testing.T) {
	p, h, f := stagingDriver(t, healer.UnmountFirst, mounts)
	p.peer = func(net.Conn) int { return 1 << 30 }
	h.mounting, h.driver = []facts.FUSEDaemon{{PID: 7, Command: "s3fs"}}, 1<<30
	c := dead()
	c.Record.Restaging = true
	p.memory.leaveAlone(csiSocket)
	s := restageStep(t, p, c)
	if s.Run == nil {
		t.Fatalf("it is refused: %s", s.Refused)
	}
	if err := s.Run(t.Context(), allowed); err == nil || !strings.Contains(err.Error(), "process 7 (s3fs)") || f.count("NodeStageVolume") > 0 {
		t.Errorf("it did %q and fails with %v", h.acts, err)
	}
}

// Who has the path in his arguments counts only once a step has begun.
func TestRestageDoesNotWaitBeforeItBegan(t *testing.T) {
	p, h, _ := stagingDriver(t, healer.UnmountFirst, mounts)
	h.mounting = []facts.FUSEDaemon{{PID: 7}}
	if s := restageStep(t, p, dead()); s.Refused != "" {
		t.Error(s.Refused)
	}
}

// A driver that answers INTERNAL may have started a daemon all the same, which is about to mount.
func TestRestageLooksBeforeTheSecondCall(t *testing.T) {
	p, h, f := stagingDriver(t, healer.StageFirst, func(h *fakeHost) error {
		h.mounting = []facts.FUSEDaemon{{PID: 7, Command: "s3fs"}}
		return status.Error(codes.Internal, "timed out waiting for the mount")
	})
	err := restageStep(t, p, dead()).Run(t.Context(), allowed)
	if got := strings.Join(h.acts, " "); err == nil || !strings.Contains(err.Error(), "process 7 (s3fs)") || got != "stage" || f.count("NodeStageVolume") != 1 {
		t.Errorf("it did %q and fails with %v", got, err)
	}
}

// The record has the call before the driver does; without it there is none.
func TestRestageRecordsTheCall(t *testing.T) {
	for _, order := range []healer.RestageOrder{healer.StageFirst, healer.UnmountFirst} {
		p, h, _ := stagingDriver(t, order, mounts)
		s := restageStep(t, p, dead())
		ctx := healer.WithCallRecorder(t.Context(), func(int, time.Duration) error { return errors.New("no space") })
		if err := s.Run(ctx, allowed); err == nil || !strings.Contains(err.Error(), "no space") || slices.Contains(h.acts, "stage") || h.mounted != "dead" {
			t.Errorf("%s: it did %q and fails with %v", order, h.acts, err)
		}
		ctx = healer.WithCallRecorder(t.Context(), func(_ int, within time.Duration) error {
			h.acts = append(h.acts, "record "+within.String())
			return nil
		})
		h.acts = nil
		if err := s.Run(ctx, allowed); err != nil || !strings.HasSuffix(strings.Join(h.acts, " "), "record 1m0s stage") {
			t.Errorf("%s: it did %q and fails with %v", order, h.acts, err)
		}
	}
}

// After ten minutes other steps may run beside the driver, but it is still not called as fast as
// the loop can.
func TestRestageIsSpacedWithoutEnd(t *testing.T) {
	p, h, _ := stagingDriver(t, healer.UnmountFirst, mounts)
	c := dead()
	c.Began = time.Hour
	c.Record.PendingStage = healer.PendingCall{First: c.Began - 20*time.Minute, Last: c.Began - 9*time.Minute, Calls: 12}
	if s := restageStep(t, p, c); p.Excludes(c) != "" || !strings.Contains(s.Refused, "the last of 12 calls") {
		t.Errorf("it excludes %q and refuses %q", p.Excludes(c), s.Refused)
	}
	c.Record.PendingStage.Last -= time.Minute
	if s := restageStep(t, p, c); s.Refused != "" {
		t.Error(s.Refused)
	}
	c.Record.Restaging, c.Record.PendingStage = true, healer.PendingCall{}
	h.mounting = []facts.FUSEDaemon{{PID: 7, Command: "s3fs", Started: c.Began - 11*time.Minute}}
	if s := restageStep(t, p, c); !strings.Contains(s.Refused, "it has not mounted for more than 10m0s") {
		t.Error(s.Refused)
	}
}

// Not all drivers have a code for that they are at work.
func TestRestageInProgress(t *testing.T) {
	for _, c := range []codes.Code{codes.Internal, codes.Unknown} {
		p, h, _ := stagingDriver(t, healer.StageFirst, func(*fakeHost) error { return status.Error(c, "an Operation in progress on volume v") })
		err := restageStep(t, p, dead()).Run(t.Context(), allowed)
		if pending, stops := driversAnswer(t, err); !pending || !stops || len(h.acts) > 1 {
			t.Errorf("%v: pending: %v, stops: %v, it did %q", err, pending, stops, h.acts)
		}
	}
}

// What no pod wants any more is left as it is, and what was staged is reported.
func TestRestageNotWanted(t *testing.T) {
	for name, tc := range map[string]struct {
		asked int         // how often it is wanted
		rule  healer.Rule // then
		acts  string
		staged,
		bare bool
	}{
		"before":                                  {rule: healer.RuleWanted},
		"while it unmounts":                       {asked: 1, rule: healer.RuleWanted, acts: "unmount", bare: true},
		"while it stages":                         {asked: 2, rule: healer.RuleWanted, acts: "unmount stage", staged: true},
		"the API is silent while it unmounts":     {asked: 1, rule: healer.RuleAPI, acts: "unmount mount-dead"},
		"the driver's pod goes while it unmounts": {asked: 1, rule: healer.RuleDriverGrace, acts: "unmount mount-dead"},
		"the API is silent while it stages":       {asked: 2, rule: healer.RuleAPI, acts: "unmount stage"},
		"the mode changes while the path is bare": {asked: 1, rule: healer.RuleMode, acts: "unmount mount-dead"},
		"the mode changes while it stages":        {asked: 2, rule: healer.RuleMode, acts: "unmount stage"},
		"one pod of a drained node goes":          {asked: 2, rule: healer.RuleDrain, acts: "unmount stage"},
		"the container ends, without an API":      {asked: 1, rule: healer.RuleOther, acts: "unmount", bare: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, h, _ := stagingDriver(t, healer.UnmountFirst, mounts)
			asked := 0
			err := restageStep(t, p, dead()).Run(t.Context(), func(context.Context) error {
				if asked++; asked > tc.asked {
					return fmt.Errorf("%w: %w", healer.ErrRefused, healer.RefusedBy(tc.rule, errors.New("gone")))
				}
				return nil
			})
			if err == nil {
				t.Error("it is no failure")
			}
			if got := strings.Join(h.acts, " "); got != tc.acts || errors.Is(err, healer.ErrNotWanted) != tc.staged || (h.mounted == "") != tc.bare {
				t.Errorf("it did %q, left %q and fails with %v", got, h.mounted, err)
			}
			// A driver that answered OK is not at work any more: the record of its call ends.
			answer := (*healer.DriverError)(nil)
			if staged := strings.HasSuffix(tc.acts, "stage"); errors.As(err, &answer) != staged || staged && answer.Pending {
				t.Errorf("the driver's answer is %+v", answer)
			}
		})
	}
}

// While the path is bare an API that is slow neither keeps it so nor takes the time in which it gets a
// dead mount.
func TestRestageSlowAPI(t *testing.T) {
	p, h, _ := stagingDriver(t, healer.UnmountFirst, func(*fakeHost) error { return errInternal })
	var left []time.Duration
	_ = restageStep(t, p, dead()).Run(t.Context(), func(ctx context.Context) error {
		h.asked, _ = ctx.Deadline()
		if h.mounted == "" {
			left = append(left, time.Until(h.asked))
		}
		return nil
	})
	if len(left) != 2 || max(left[0], left[1]) > wantedTimeout {
		t.Errorf("while the path is bare the API may take %s", left)
	}
	if h.mounted != "dead" || h.toMount < finishTimeout/4 {
		t.Errorf("an API that takes its time leaves %s to mount, and the path has %q", h.toMount, h.mounted)
	}
}

// What is said of a step is one line, and says all that went wrong: a message has no other.
func TestRestageSaysAllOnOneLine(t *testing.T) {
	silent := fmt.Errorf("%w: %w", healer.ErrRefused, healer.RefusedBy(healer.RuleAPI, errors.New("the API is silent")))
	for name, tc := range map[string]struct {
		order healer.RestageOrder
		stage func(*fakeHost) error
		asked int   // how often it is wanted
		stuck error // why the path stays bare
		says  []string
	}{
		"no effect, bare": {
			order: healer.UnmountFirst, asked: 9, stuck: errors.New("it hangs"),
			stage: func(*fakeHost) error { return nil },
			says:  []string{"RestageHadNoEffect", "; the staging path may be bare: it hangs"},
		},
		"failed, bare": {
			order: healer.UnmountFirst, asked: 9, stuck: errors.New("it hangs"),
			stage: func(*fakeHost) error { return errInternal },
			says:  []string{"NodeStageVolume: INTERNAL", "; the staging path may be bare: it hangs"},
		},
		"failed, the API is silent, bare": {
			order: healer.UnmountFirst, asked: 2, stuck: errors.New("it hangs"),
			stage: func(*fakeHost) error { return errInternal },
			says:  []string{"NodeStageVolume: INTERNAL", "; refused: the API is silent", "; the staging path may be bare: it hangs"},
		},
		"failed, and not tried without the dead mount": {
			order: healer.StageFirst, asked: 1,
			stage: func(*fakeHost) error { return errInternal },
			says:  []string{"NodeStageVolume: INTERNAL", "; refused: the API is silent"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, h, _ := stagingDriver(t, tc.order, tc.stage)
			h.stuck = tc.stuck
			asked := 0
			err := restageStep(t, p, dead()).Run(t.Context(), func(context.Context) error {
				if asked++; asked > tc.asked {
					return silent
				}
				return nil
			})
			answer := (*healer.DriverError)(nil)
			if err == nil || strings.Contains(err.Error(), "\n") || !errors.As(err, &answer) {
				t.Fatalf("it fails with %q", err)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it does not say %q, but %q", want, err)
				}
			}
		})
	}
}

// An interrupted step left the path bare, and the driver is not there.
func TestRestageLeftBare(t *testing.T) {
	p, h, f := stagingDriver(t, healer.UnmountFirst, mounts)
	c := dead()
	c.MountPoints[1].Stack, c.Record.Restaging = nil, true
	s := restageStep(t, p, c)
	f.name, h.mounted = "other.example.com", ""
	err := s.Run(t.Context(), func(context.Context) error { return nil })
	if got := strings.Join(h.acts, " "); err == nil || got != "mount-dead" {
		t.Errorf("it did %q and fails with %v", got, err)
	}
}

// What is not known to be dead for good is not offered, or refused.
func TestRestageOffered(t *testing.T) {
	top := func(change func(*facts.Mount)) func(*healer.Case, *Provider, *fakeHost) {
		return func(c *healer.Case, _ *Provider, _ *fakeHost) { change(&c.MountPoints[1].Stack[0]) }
	}
	answers := func(errno syscall.Errno) func(*healer.Case, *Provider, *fakeHost) {
		return func(c *healer.Case, _ *Provider, _ *fakeHost) {
			sb := c.Superblocks[fuseDev]
			sb.Answer.Errno = errno
			c.Superblocks = map[facts.Dev]healer.Superblock{fuseDev: sb}
		}
	}
	const notOffered = "-"
	for name, tc := range map[string]struct {
		change func(*healer.Case, *Provider, *fakeHost)
		want   string
	}{
		"dead":           {func(*healer.Case, *Provider, *fakeHost) {}, ""},
		"aborted":        {answers(syscall.ECONNABORTED), ""},
		"it answers":     {answers(0), notOffered},
		"an I/O error":   {answers(syscall.EIO), notOffered},
		"fuseblk":        {top(func(m *facts.Mount) { m.FSType = "fuseblk" }), notOffered},
		"a device":       {top(func(m *facts.Mount) { m.Source = "/dev/sdb" }), notOffered},
		"NFS":            {top(func(m *facts.Mount) { m.FSType = "nfs4" }), notOffered},
		"a directory in": {top(func(m *facts.Mount) { m.Path = "/real/kubelet" }), notOffered},
		"not kubelet's": {func(c *healer.Case, _ *Provider, _ *fakeHost) {
			c.MountPoints[1].Layout = layout.Path{}
		}, notOffered},
		"bare": {func(c *healer.Case, _ *Provider, _ *fakeHost) { c.MountPoints[1].Stack = nil }, notOffered},
		"left bare": {func(c *healer.Case, _ *Provider, _ *fakeHost) {
			c.MountPoints[1].Stack, c.Record.Restaging = nil, true
		}, ""},
		"left bare, and nothing else is dead": {func(c *healer.Case, _ *Provider, _ *fakeHost) {
			c.MountPoints = c.MountPoints[1:]
			c.MountPoints[0].Stack, c.Record.Restaging = nil, true
		}, notOffered},
		"left bare in another boot": {func(c *healer.Case, _ *Provider, _ *fakeHost) {
			c.MountPoints[1].Stack, c.Record.Restaging, c.BootID = nil, true, "another"
		}, notOffered},
		"a disk left bare": {func(c *healer.Case, _ *Provider, _ *fakeHost) {
			c.MountPoints[1].Stack, c.Record.Restaging, c.Record.FSType = nil, true, "ext4"
		}, notOffered},
		"not known who serves": {func(c *healer.Case, _ *Provider, _ *fakeHost) { c.Found = c.Found[:1] }, "still has the FUSE connection open"},
		"another driver":       {func(_ *healer.Case, p *Provider, _ *fakeHost) { p.cfg.Stager = NewFromCall(nil) }, "is not switched on"},
	} {
		t.Run(name, func(t *testing.T) {
			p, h, _ := stagingDriver(t, healer.StageFirst, mounts)
			c := dead()
			tc.change(&c, p, h)
			s := restageStep(t, p, c)
			if (s.Name == "") != (tc.want == notOffered) || tc.want != notOffered && !strings.Contains(s.Refused, tc.want) || tc.want == "" && s.Refused != "" {
				t.Errorf("it offers %+v", s)
			}
		})
	}
}

// A daemon that came since keeps the step from running.
func TestRestageLooksAgain(t *testing.T) {
	for name, d := range map[string]facts.FUSEDaemons{
		"a process": {Processes: []facts.FUSEDaemon{{PID: 7}}}, "untold": {Untold: true}, "cut": {Cut: true}, "unseen": {Unseen: 1},
	} {
		for _, beneath := range []bool{false, true} {
			p, h, _ := stagingDriver(t, healer.UnmountFirst, mounts)
			c := dead()
			h.daemons = d
			if beneath { // it took the connection over in the middle of the first look at that
				other := c.MountPoints[1].Stack[0]
				other.Dev = facts.Dev{Minor: 51}
				c.MountPoints[1].Stack = append(c.MountPoints[1].Stack, other)
				c.Superblocks[other.Dev] = c.Superblocks[fuseDev]
				h.missed = 2
			}
			err := restageStep(t, p, c).Run(t.Context(), func(context.Context) error { return nil })
			if !errors.Is(err, healer.ErrRefused) || len(h.acts) > 0 {
				t.Errorf("%s: it did %q and fails with %v", name, h.acts, err)
			}
		}
	}
}

// A look that misses nothing among many that do does not keep the step looking for ever.
func TestRestageEndsItsLooks(t *testing.T) {
	p, h, _ := stagingDriver(t, healer.UnmountFirst, mounts)
	c := dead()
	looks := 0
	h.look = func() facts.FUSEDaemons {
		if looks++; looks > 3*daemonLooks {
			t.Fatal("it looks again and again")
		}
		return facts.FUSEDaemons{Cut: looks != daemonLooks}
	}
	if err := p.daemonGone(t.Context(), c.MountPoints[0].Dev()); !errors.Is(err, healer.ErrRefused) {
		t.Error(err)
	}
}

// kubelet's choice of an access mode.
func TestAccessMode(t *testing.T) {
	const stage, many, group = csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP
	type modes = []csi.NodeServiceCapability_RPC_Type
	for _, tc := range []struct {
		with    healer.StageRequest
		offered modes
		want    string // empty: refused
	}{
		{healer.StageRequest{VolumeAccessMode: "ReadWriteOnce"}, modes{stage}, "SINGLE_NODE_WRITER"},
		{healer.StageRequest{VolumeAccessMode: "ReadWriteOncePod"}, modes{stage}, "SINGLE_NODE_WRITER"},
		{healer.StageRequest{VolumeAccessMode: "ReadWriteOnce"}, modes{stage, many}, "SINGLE_NODE_MULTI_WRITER"},
		{healer.StageRequest{VolumeAccessMode: "ReadWriteOncePod"}, modes{stage, many}, "SINGLE_NODE_SINGLE_WRITER"},
		{healer.StageRequest{VolumeAccessMode: "ReadOnlyMany"}, modes{stage, many}, "MULTI_NODE_READER_ONLY"},
		{healer.StageRequest{VolumeAccessMode: "ReadWriteMany"}, modes{stage}, "MULTI_NODE_MULTI_WRITER"},
		{healer.StageRequest{AccessMode: "SINGLE_NODE_READER_ONLY"}, modes{stage}, "SINGLE_NODE_READER_ONLY"},
		{healer.StageRequest{VolumeAccessMode: "ReadWriteMany", FSGroup: true}, modes{stage}, "MULTI_NODE_MULTI_WRITER"},
		{healer.StageRequest{VolumeAccessMode: "ReadWriteMany", FSGroup: true}, modes{stage, group}, ""},
		{healer.StageRequest{VolumeAccessMode: "ReadWriteMany"}, modes{group}, ""},
		{healer.StageRequest{VolumeAccessMode: "New"}, modes{stage}, ""},
	} {
		mode, err := stagingMode(tc.with, tc.offered)
		if (err != nil) != (tc.want == "") || err == nil && mode.String() != tc.want {
			t.Errorf("%+v with %v: %s, %v", tc.with, tc.offered, mode, err)
		}
	}
}

func TestRestageKeepsTheContract(t *testing.T) {
	p, h, f := stagingDriver(t, healer.UnmountFirst, mounts)
	tools := p.tools.(*providertest.Tools)
	const stagesAt = "/var/lib/kubelet/plugins/d.example.com/stage.sock" // the other one is left alone after a hostile answer
	tools.Sockets[stagesAt] = tools.Sockets[csiSocket]
	opinion := &healer.Condition{
		Status: healer.Inaccessible, Reason: healer.DriverReportsAbnormal, MountPoint: published, Superblock: fuseDev, Message: "driver d says: it is gone", Advice: adviceDriver,
	}
	providertest.Run(t, p, providertest.Cases{
		Healthy: func() healer.Case { return with(healthy(), Evidence{}) },
		Sick: map[string]func() healer.Case{
			"DriverReportsAbnormal": func() healer.Case {
				h.mounted = "dead"
				return with(dead(), Evidence{Opinion: opinion, Order: healer.UnmountFirst, StagesAt: stagesAt})
			},
		},
		Tools: tools,
		Acts:  func() int { return f.count("NodeStageVolume") + len(h.acts) },
	})
}
