package driver

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

// lost is a volume whose bind at the target is gone, as mounts reports it.
func lost() healer.Case {
	c := healthy()
	c.MountPoints[0].Stack = nil
	c.Found = []healer.Condition{
		{Status: healer.Inaccessible, Reason: healer.NotMounted, MountPoint: published, Message: "m", Advice: "a", Acute: true},
		{Status: healer.Degraded, Reason: healer.SlowResponse, MountPoint: staged, Message: "m", Advice: "a"},
	}
	return c
}

// delegateOf returns the one step that a driver gets for a case.
func delegateOf(t *testing.T, p *Provider, c healer.Case) healer.Step {
	t.Helper()
	f, err := p.Examine(with(c, collect(t, p, c)))
	if err != nil || len(f.Steps) != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	return f.Steps[0]
}

func allowed(context.Context) error { return nil }

func TestDelegate(t *testing.T) {
	f := newFake()
	f.heal = func(context.Context) (*healerpb.NodeHealerResponse, error) {
		return &healerpb.NodeHealerResponse{}, nil
	}
	p := f.serve(t)
	s := delegateOf(t, p, lost())
	if s.Name != StepDelegate || s.MountPoint.Path != published || s.Cost != healer.Delegate || !s.CanHeal(healer.NotMounted) || s.CanHeal(healer.SlowResponse) || !s.Writes || !s.Sourceless() {
		t.Errorf("%+v", s)
	}
	f.take()
	if err := s.Run(t.Context(), allowed); err != nil {
		t.Error(err)
	}
	same(t, "asked", f.take(), []string{"GetIdentity", "NodeHealer"})
	r := f.healed
	if r.GetVolumeId() != "v" || r.GetVolumePath() != "/var/lib/kubelet/pods/a/mount" || r.GetStagingTargetPath() != "/var/lib/kubelet/staged/globalmount" ||
		r.GetSecrets()["key"] != secret || r.GetVolumeContext()["pool"] != parameter {
		t.Errorf("%+v", r)
	}
}

// What is dead where it is staged nothing here can replace.
func TestDelegateOfADeadFilesystem(t *testing.T) {
	c := healthy()
	c.Superblocks = map[facts.Dev]healer.Superblock{disk: {Dev: disk, FSType: "fuse.x", Answer: facts.Answer{Asked: true, Op: "statx", Errno: syscall.ENOTCONN}}}
	c.Found = []healer.Condition{
		{Status: healer.Inaccessible, Reason: healer.Disconnected, MountPoint: published, Superblock: disk, Message: "m", Advice: "a"},
		{Status: healer.Inaccessible, Reason: healer.WrongVolumeMounted, MountPoint: published, Message: "m", Advice: "a"},
	}
	if s := delegateOf(t, newFake().serve(t), c); !s.CanHeal(healer.Disconnected) || s.CanHeal(healer.WrongVolumeMounted) {
		t.Errorf("%+v", s)
	}
}

func TestDelegateIsNotOffered(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*fake)
		c      healer.Case
	}{
		"nothing is acute":    {func(*fake) {}, healthy()},
		"in a container only": {func(*fake) {}, inContainer()},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			tc.change(f)
			p := f.serve(t)
			if found, err := p.Examine(with(tc.c, collect(t, p, tc.c))); err != nil || len(found.Steps) > 0 {
				t.Errorf("%+v, %v", found, err)
			}
		})
	}
	p := provider(&providertest.Tools{})
	if e := collect(t, p, lost()); e.HealsAt != "" || e.NotOffered == "" {
		t.Errorf("without a socket: %+v", e)
	}
}

func inContainer() healer.Case {
	c := lost()
	c.MountPoints[0].InContainer, c.MountPoints[0].Role = &healer.InContainer{}, healer.RoleContainer
	return c
}

// The record has the call before the driver does: a server that is killed during it knows that the
// driver may be at work.
func TestDelegateRecordsTheCall(t *testing.T) {
	f := newFake()
	f.heal = func(context.Context) (*healerpb.NodeHealerResponse, error) {
		return &healerpb.NodeHealerResponse{}, nil
	}
	s := delegateOf(t, f.serve(t), lost())
	noSpace, called := errors.New("no space"), time.Duration(0)
	ctx := healer.WithCallRecorder(t.Context(), func(_ int, within time.Duration) error { called = within; return noSpace })
	if err := s.Run(ctx, allowed); !errors.Is(err, noSpace) || called != time.Minute || f.count("NodeHealer") > 0 {
		t.Errorf("it recorded %s, and fails with %v", called, err)
	}
}

func TestDelegateAsksBeforeItActs(t *testing.T) {
	f := newFake()
	p := f.serve(t)
	s := delegateOf(t, p, lost())
	gone := errors.New("no longer wanted")
	if err := s.Run(t.Context(), func(context.Context) error { return gone }); !errors.Is(err, gone) || f.healed != nil {
		t.Errorf("%v, %+v", err, f.healed)
	}
	f.name = "other.example.com" // another driver took the socket
	if err := s.Run(t.Context(), allowed); err == nil || f.healed != nil {
		t.Errorf("%v, %+v", err, f.healed)
	}
	if e := collect(t, p, lost()); e.HealsAt != "" {
		t.Errorf("it is offered again at once: %+v", e)
	}
}

// delegated has the driver asked to heal a volume; one that never answers is given little time,
// and asked again where a busy machine let that pass before the driver was reached.
func (f *fake) delegated(t *testing.T, c healer.Case, never bool) (p *Provider, err error) {
	t.Helper()
	for range 20 {
		p = f.serve(t)
		if never {
			p.cfg.StepTimeout = time.Second
		}
		if err = delegateOf(t, p, c).Run(t.Context(), allowed); f.count("NodeHealer") > 0 {
			break
		}
	}
	return p, err
}

func TestDelegateAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		heal  func(context.Context) (*healerpb.NodeHealerResponse, error)
		says  string
		class string
		kind  healer.Kind
		stops bool
	}{
		"still abnormal": {
			heal: func(context.Context) (*healerpb.NodeHealerResponse, error) {
				return &healerpb.NodeHealerResponse{Abnormal: true, Message: "pool " + parameter + " is gone\n"}, nil
			},
			says: "driver d.example.com says that the volume is abnormal; see the log of the driver's pod on this node", class: "retriable/unknown",
		},
		"busy":        {heal: code(codes.Aborted), says: "NodeHealer: ABORTED: transient; see the log of the driver's pod on this node", class: "transient/execution", stops: true},
		"internal":    {heal: code(codes.Internal), says: "NodeHealer: INTERNAL: retriable; see the log of the driver's pod on this node", class: "retriable/execution"},
		"bad secrets": {heal: code(codes.Unauthenticated), says: "driver d.example.com refused the secrets: NodeHealer: UNAUTHENTICATED", class: "terminal/permission", kind: healer.KindUnauthenticated},
		"never": {
			heal:  func(ctx context.Context) (*healerpb.NodeHealerResponse, error) { <-ctx.Done(); return nil, ctx.Err() },
			says:  "NodeHealer: DEADLINE_EXCEEDED",
			class: "retriable/timeout",
			stops: true,
		},
		"cannot do it": {heal: nil, says: "NodeHealer: UNIMPLEMENTED", class: "terminal/execution"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.heal = tc.heal
			p, err := f.delegated(t, lost(), name == "never")
			if err == nil {
				t.Fatal("no error")
			}
			stopper, stops := err.(interface{ Ended() <-chan struct{} }) //nolint:errorlint // as the engine asks
			if !strings.Contains(err.Error(), tc.says) || healer.Classify(err).String() != tc.class || healer.KindOf(err) != tc.kind || stops != tc.stops {
				t.Errorf("%v: %s, kind %v, stops: %v", err, healer.Classify(err), healer.KindOf(err), stops)
			}
			if stops {
				<-stopper.Ended()
			}
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), parameter) {
				t.Errorf("it quotes a secret: %v", err)
			}
			// What is not implemented is not offered again.
			if e := collect(t, p, lost()); (e.HealsAt == "") != (tc.heal == nil) {
				t.Errorf("afterwards: %+v", e)
			}
		})
	}
}

func code(c codes.Code) func(context.Context) (*healerpb.NodeHealerResponse, error) {
	return func(context.Context) (*healerpb.NodeHealerResponse, error) { return nil, status.Error(c, "no "+secret) }
}

func TestProviderKeepsTheContract(t *testing.T) {
	f := newFake()
	f.heal = func(context.Context) (*healerpb.NodeHealerResponse, error) {
		return &healerpb.NodeHealerResponse{}, nil
	}
	p := f.serve(t)
	p.memory = newMemory(forgetful{withClock(p)}) // the suite's deadlines are brief for a busy machine
	sick := func(build func() healer.Case, e Evidence) func() healer.Case {
		return func() healer.Case { return with(build(), e) }
	}
	opinion := &healer.Condition{
		Status: healer.Inaccessible, Reason: healer.DriverReportsAbnormal, MountPoint: published, Superblock: disk, Message: "driver d says: it is gone", Advice: adviceDriver,
	}
	providertest.Run(t, p, providertest.Cases{
		Healthy: sick(healthy, Evidence{HealsAt: addonsAt}),
		Sick: map[string]func() healer.Case{
			"DriverReportsAbnormal": sick(healthy, Evidence{Opinion: opinion}),
			"with a step":           sick(lost, Evidence{Opinion: opinion, HealsAt: addonsAt}),
			"without a step":        sick(lost, Evidence{Opinion: opinion, NotOffered: "no such file"}),
		},
		Tools: p.tools.(*providertest.Tools),
		Acts:  func() int { return f.count("NodeHealer") },
	})
}
