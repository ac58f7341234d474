package driver

import (
	"context"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func gone(context.Context) (*csi.VolumeHealth, error) {
	return &csi.VolumeHealth{HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{entry(csi.VolumeHealthErrorType_DATA_LOSS, "Gone", "x")}}, nil
}

// hands is a clock that a test moves.
type hands struct {
	mu  sync.Mutex
	now time.Time
}

func (h *hands) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hands) pass(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

// forgetful is a clock by which no silence is remembered at the next look.
type forgetful struct{ *hands }

func (f forgetful) Now() time.Time {
	f.pass(2 * silentFor)
	return f.hands.Now()
}

func withClock(p *Provider) *hands {
	h := &hands{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	p.memory = newMemory(h)
	return h
}

// One volume about which the driver does not answer says nothing of the others.
func TestSilenceAboutOneVolume(t *testing.T) {
	f := newFake()
	p := f.serve(t)
	other := healthy()
	other.Volume.ID = "w"
	f.health = func(context.Context) (*csi.VolumeHealth, error) { return nil, status.Error(codes.DeadlineExceeded, "") }
	if e := collect(t, p, other); !strings.Contains(e.NotAsked, "DEADLINE_EXCEEDED") {
		t.Errorf("%+v", e)
	}
	f.health = gone
	if e := collect(t, p, healthy()); e.Opinion == nil || e.NotAsked != "" {
		t.Errorf("%+v", e)
	}
	f.take()
	if e := collect(t, p, other); e.Opinion != nil || !strings.Contains(e.NotAsked, "a short time ago") || len(f.take()) > 0 {
		t.Errorf("%+v", e)
	}
}

// A driver that does not answer has not changed its mind.
func TestLastOpinionStands(t *testing.T) {
	f := newFake()
	f.health = gone
	p := f.serve(t)
	clock := withClock(p)
	first := collect(t, p, healthy())
	f.health = func(context.Context) (*csi.VolumeHealth, error) { return nil, status.Error(codes.Unavailable, "") }
	clock.pass(2 * time.Minute)
	e := collect(t, p, healthy())
	if e.NotAsked == "" || e.Opinion == nil || e.Opinion.Status != healer.DataLoss || e.Opinion.MountPoint != published || e.Opinion.Superblock != disk ||
		e.Opinion.Message != first.Opinion.Message+"; that was 2m0s ago, and it cannot be asked now" {
		t.Errorf("%+v: %+v", e, e.Opinion)
	}
	clock.pass(opinionFor)
	if e := collect(t, p, healthy()); e.Opinion != nil {
		t.Errorf("it stands for ever: %+v", e.Opinion)
	}

	f.health = gone
	collect(t, p, healthy())
	f.health = nil // nothing is wrong any more
	collect(t, p, healthy())
	f.health = func(context.Context) (*csi.VolumeHealth, error) { return nil, status.Error(codes.Unavailable, "") }
	if e := collect(t, p, healthy()); e.Opinion != nil {
		t.Errorf("it said otherwise since: %+v", e.Opinion)
	}
}

// A node may have more volumes than opinions are kept: those with which nothing is wrong displace none.
func TestLastOpinionIsNotDisplaced(t *testing.T) {
	f := newFake()
	f.health = gone
	p := f.serve(t)
	p.memory.opinions = cache.NewLRUExpireCacheWithClock(1, p.memory.clock)
	collect(t, p, healthy())
	f.health = nil
	other := healthy()
	other.Volume.ID = "w"
	if e := collect(t, p, other); e.Opinion != nil || e.NotAsked != "" {
		t.Errorf("%+v", e)
	}
	f.health = func(context.Context) (*csi.VolumeHealth, error) { return nil, status.Error(codes.Unavailable, "") }
	if e := collect(t, p, healthy()); e.Opinion == nil {
		t.Errorf("%+v", e)
	}
}

// What the driver said of one instance says nothing of the one that it has staged since.
func TestLastOpinionIsOfOneInstance(t *testing.T) {
	f := newFake()
	f.health = gone
	p := f.serve(t)
	collect(t, p, healthy())
	f.health = func(context.Context) (*csi.VolumeHealth, error) { return nil, status.Error(codes.Unavailable, "") }
	staged := healthy()
	anew := facts.Dev{Major: 8, Minor: 77}
	staged.Superblocks[anew] = healer.Superblock{Dev: anew, FSType: "ext4", Answer: facts.Answer{Asked: true}}
	for i := range staged.MountPoints {
		staged.MountPoints[i].Stack[0].Dev = anew
	}
	if e := collect(t, p, staged); e.NotAsked == "" || e.Opinion != nil {
		t.Errorf("%+v: %+v", e, e.Opinion)
	}
}

// What a driver says of a target that it is asked about is no matter of what is staged, also where the
// call names the staging path: else the staged superblock would count as too sick to be brought to it.
func TestOpinionIsAboutTheTargetThatWasNamed(t *testing.T) {
	f := newFake()
	f.health = gone
	c := healthy()
	slices.Reverse(c.MountPoints)
	before := facts.Dev{Minor: 51}
	c.MountPoints[1].Stack[0].Dev = before
	c.Superblocks[before] = healer.Superblock{Dev: before, FSType: "fuse.x", Answer: facts.Answer{Asked: true, Errno: syscall.ENOTCONN}}
	e := collect(t, f.serve(t), c)
	same(t, "paths", f.paths, []string{"/var/lib/kubelet/pods/a/mount", "/var/lib/kubelet/staged/globalmount"})
	if e.Opinion == nil || e.Opinion.MountPoint != published || e.Opinion.Superblock != before {
		t.Errorf("%+v: %+v", e, e.Opinion)
	}
}

// An opinion about a mount that answers alone is not one about its superblock: another
// mount of it may heal this one.
func TestOpinionAboutOneMount(t *testing.T) {
	f := newFake()
	f.health = gone
	p := f.serve(t)
	stale := healthy()
	stale.MountPoints[0].Own = facts.Answer{Asked: true, Errno: syscall.ESTALE}
	if e := collect(t, p, stale); e.Opinion == nil || e.Opinion.MountPoint != published || !e.Opinion.Superblock.Zero() {
		t.Errorf("%+v: %+v", e, e.Opinion)
	}
}
