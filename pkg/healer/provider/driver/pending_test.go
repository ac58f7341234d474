package driver

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

// driversAnswer is how the engine is told what a driver answered: whether that is recorded as
// pending, and whether other steps stop.
func driversAnswer(t *testing.T, err error) (pending, stops bool) {
	t.Helper()
	var answer *healer.DriverError
	if !errors.As(err, &answer) {
		t.Fatalf("%v is no answer of a driver", err)
	}
	var stopper interface{ Ended() <-chan struct{} }
	return answer.Pending, errors.As(err, &stopper)
}

// A driver that may be at work, by what the record says.
func TestExcludes(t *testing.T) {
	const first, now = time.Minute, time.Hour
	for name, tc := range map[string]struct {
		row    healer.PendingCall
		listen int
		want   bool
	}{
		"none":              {healer.PendingCall{}, 0, false},
		"a moment ago":      {healer.PendingCall{First: now - time.Second, Last: now - time.Second, Calls: 1, PID: 7}, 7, true},
		"who listens?":      {healer.PendingCall{First: now - time.Second, Last: now - time.Second, Calls: 1, PID: 7}, 0, true},
		"who was called?":   {healer.PendingCall{First: now - time.Second, Last: now - time.Second, Calls: 1}, 7, true},
		"another process":   {healer.PendingCall{First: now - time.Second, Last: now - time.Second, Calls: 1, PID: 6}, 7, false},
		"a minute ago":      {healer.PendingCall{First: now - first, Last: now - first, Calls: 1}, 0, false},
		"twice":             {healer.PendingCall{First: now - 3*first, Last: now - first, Calls: 2}, 0, true},
		"for ten minutes":   {healer.PendingCall{First: now - 10*first, Last: now - time.Second, Calls: 5}, 0, false},
		"very many of them": {healer.PendingCall{First: now - first, Last: now - first, Calls: 1 << 30}, 0, true},
	} {
		p := provider(nil)
		p.cfg.StepTimeout = first / waitParts
		for _, heal := range []bool{true, false} {
			c := with(dead(), Evidence{StagePID: tc.listen, HealPID: tc.listen})
			c.Began, c.BootTime = now, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			if heal {
				c.Record.PendingHeal = tc.row
			} else {
				c.Record.PendingStage = tc.row
			}
			why := p.Excludes(c)
			if (why != "") != tc.want || tc.want && !strings.HasPrefix(why, "driver d.example.com may still be at work since 2026-01-02T0") {
				t.Errorf("%s: %q", name, why)
			}
			c.BootID = "another"
			if why := p.Excludes(c); why != "" {
				t.Errorf("%s, before this boot: %q", name, why)
			}
		}
	}
}

// Who listens is known also where nothing is mounted, so that nothing is asked: a driver that was
// started anew is not at work on what was asked of the process before.
func TestWhoListensWhereNothingIsMounted(t *testing.T) {
	const registered = "/var/lib/kubelet/plugins/csi-plugin/csi.sock"
	for _, at := range []string{csiSocket, registered} {
		f := newFake()
		p := f.serve(t)
		p.cfg.StepTimeout, p.cfg.Host = time.Minute, &fakeHost{}
		p.peer = func(net.Conn) int { return 1 << 30 }
		sockets := p.tools.(*providertest.Tools).Sockets
		served := sockets[csiSocket]
		delete(sockets, csiSocket)
		sockets[at] = served
		sockets["/var/lib/kubelet/plugins_registry/d.example.com-reg.sock"] = listen(t, func(s *grpc.Server) {
			register(s, []string{"CSIPlugin", driverName, registered})
		})
		for called, atWork := range map[int]bool{1 << 30: true, 1<<30 + 1: false} {
			c := dead()
			c.MountPoints[0].Stack, c.MountPoints[1].Stack = nil, nil
			c.Record.Restaging, c.Record.PendingStage = true, healer.PendingCall{Calls: 1, PID: called}
			e := collect(t, p, c)
			if got := p.Excludes(with(c, e)); (got != "") != atWork || !strings.Contains(e.NotAsked, "nothing is mounted") || len(f.take()) > 0 {
				t.Errorf("%s, of process %d: %q, %+v", at, called, got, e)
			}
		}
	}
}

// The handler of a driver may ignore that the call ended.
func TestAnswersThatLeaveItOpen(t *testing.T) {
	for name, tc := range map[string]struct {
		heal           func(context.Context) (*healerpb.NodeHealerResponse, error)
		pending, stops bool
		row            healer.PendingCall
	}{
		"none in time": {heal: func(ctx context.Context) (*healerpb.NodeHealerResponse, error) { <-ctx.Done(); return nil, ctx.Err() }, pending: true, stops: true},
		"ABORTED":      {heal: code(codes.Aborted), pending: true, stops: true},
		"UNAVAILABLE":  {heal: code(codes.Unavailable), pending: true, stops: true},
		"CANCELLED":    {heal: code(codes.Canceled), pending: true, stops: true},
		"INTERNAL":     {heal: code(codes.Internal)},
		"for too long": {heal: code(codes.Aborted), row: healer.PendingCall{First: -time.Hour, Last: -time.Minute, Calls: 1}, pending: true},
		"still abnormal": {heal: func(context.Context) (*healerpb.NodeHealerResponse, error) {
			return &healerpb.NodeHealerResponse{Abnormal: true}, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.heal = tc.heal
			c := lost()
			c.Record.PendingHeal = tc.row
			_, err := f.delegated(t, c, name == "none in time")
			if pending, stops := driversAnswer(t, err); pending != tc.pending || stops != tc.stops {
				t.Errorf("pending: %v, stops: %v", pending, stops)
			}
		})
	}
}

// What its sockets did meanwhile keeps nobody from asking whether it has ended.
func TestDriverAtWorkIsAskedAgain(t *testing.T) {
	f := newFake()
	p := f.serve(t)
	p.cfg.StepTimeout = time.Minute
	p.memory.leaveAlone(csiSocket)
	p.memory.leaveAlone(addonsAt)
	f.heal = code(codes.Internal)
	c := lost()
	c.Record.PendingHeal = healer.PendingCall{Calls: 1}
	if err := delegateOf(t, p, c).Run(t.Context(), allowed); err == nil || !strings.Contains(err.Error(), "INTERNAL") {
		t.Error(err)
	}
}

// The volume itself may hang by then, so that the driver is not asked.
func TestDriverAtWorkOnAVolumeThatHangs(t *testing.T) {
	p := provider(&providertest.Tools{Sockets: map[string]func(context.Context) (net.Conn, error){
		csiSocket: raw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }),
	}})
	c := lost()
	c.Record.PendingHeal = healer.PendingCall{Calls: 1}
	c.Superblocks = nil
	if e := collect(t, p, c); e != (Evidence{}) || p.Excludes(c) == "" {
		t.Errorf("%+v, %q", e, p.Excludes(c))
	}
}

// A driver that answered ABORTED to NodeStageVolume is at work until what it staged answers.
func TestStagingIsSettledByWhatIsStaged(t *testing.T) {
	p, _, _ := stagingDriver(t, healer.UnmountFirst, func(*fakeHost) error { return status.Error(codes.Aborted, "") })
	c := dead()
	if pending, stops := driversAnswer(t, restageStep(t, p, c).Run(t.Context(), allowed)); !pending || !stops {
		t.Errorf("pending: %v, stops: %v", pending, stops)
	}
	c.Record.PendingStage = healer.PendingCall{Calls: 1}
	if p.Excludes(c) == "" {
		t.Error("other steps may run beside the driver")
	}
	sb := c.Superblocks[fuseDev]
	sb.Answer.Errno = 0
	c.Superblocks = map[facts.Dev]healer.Superblock{fuseDev: sb}
	if why := p.Excludes(c); why != "" {
		t.Error(why)
	}
}
