package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	driver = "csi.example.com"
	volID  = "vol/1"
	podA   = "/k/pods/uid-a/volumes/kubernetes.io~csi/pv1/mount"
	podB   = "/k/pods/uid-b/volumes/kubernetes.io~csi/pv1/mount"
)

var (
	kubelet = layout.Kubelet{Root: "/k"}
	staging = kubelet.Staging(driver, volID)
	disk    = facts.Dev{Major: 8, Minor: 16}
	volume  = healer.Volume{ID: volID, Path: podA, StagingPath: staging}
)

// fakeProvider is a provider that finds what the test says is wrong.
type fakeProvider struct {
	mu    sync.Mutex
	sick  map[string]healer.Reason // by mount point
	steps []healer.Step
	cases []healer.Case
	err   error
	// examined runs when a case is examined.
	examined func()
}

func (*fakeProvider) Name() string { return "fake" }

func (p *fakeProvider) Examine(c healer.Case) (healer.Finding, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cases = append(p.cases, c)
	if p.examined != nil {
		p.examined()
	}
	f := healer.Finding{Mine: true, Steps: p.steps}
	for mountPoint, reason := range p.sick {
		c := healer.Condition{Status: healer.Inaccessible, Reason: reason, MountPoint: mountPoint, Acute: true}
		if slices.Contains([]healer.Reason{healer.StackedMounts, healer.ReadOnlyFilesystem, healer.SlowResponse, healer.FilesystemErrors, healer.ContainerUnverified}, reason) {
			c.Status = healer.Degraded
		}
		f.Conditions = append(f.Conditions, c)
	}
	slices.SortFunc(f.Conditions, func(a, b healer.Condition) int { return strings.Compare(a.MountPoint, b.MountPoint) })
	return f, p.err
}

func (p *fakeProvider) fall(mountPoint string, r healer.Reason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sick[mountPoint] = r
}

func (p *fakeProvider) recover(mountPoint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sick, mountPoint)
}

// last returns the last case that was examined.
func (p *fakeProvider) last() healer.Case {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.cases) == 0 {
		return healer.Case{}
	}
	return p.cases[len(p.cases)-1]
}

// offer adds a step that heals NotMounted at a mount point; run decides what it does.
func (p *fakeProvider) offer(name, mountPoint string, cost healer.Cost, run func() error) {
	p.steps = append(p.steps, healer.Step{
		Name: name, MountPoint: healer.MountPoint{Role: healer.RoleTarget, Path: mountPoint}, Cost: cost, Heals: []healer.Reason{healer.NotMounted}, Source: disk,
		Run: func(context.Context, func(context.Context) error) error { return run() },
	})
}

// cure is a step's work that really helps.
func (p *fakeProvider) cure(mountPoint string) func() error {
	return func() error { p.recover(mountPoint); return nil }
}

// fakeStores is the memory of all that an engine writes.
type fakeStores struct {
	mu          sync.Mutex
	records     map[key]healer.Record
	saveErr     error
	saves       int
	before      []healer.AuditEntry
	after       []healer.AuditEntry
	broken      error           // what writing the audit log gives
	refuse      error           // what the gate says
	refuseAt    string          // the one mount point that the gate refuses
	noWrite     error           // what the gate says to a write on a disk
	wanted      map[string]bool // by pod UID, what the gate says
	unknown     error           // why the gate does not know whether a mount point is wanted
	noLook      error           // what the gate says to an observation
	readersOnly bool            // what it says of the volume
	revalidate  error           // what a permit says
	entered     int
	left        []error
}

func (n *fakeStores) Load(driver, id string) (*healer.Record, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, known := n.records[volumeKey(driver, id)]
	if !known {
		return nil, nil //nolint:nilnil // as documented
	}
	r.MountPoints = slices.Clone(r.MountPoints)
	return &r, nil
}

func (n *fakeStores) Save(r healer.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.saveErr != nil {
		return n.saveErr
	}
	n.saves++
	n.records[volumeKey(r.Driver, r.VolumeID)] = r
	return nil
}

func (n *fakeStores) Before(e ...healer.AuditEntry) error {
	n.before = append(n.before, e...)
	return n.broken
}

func (n *fakeStores) After(e ...healer.AuditEntry) error {
	n.after = append(n.after, e...)
	return n.broken
}

func (n *fakeStores) Enter(_ context.Context, _ healer.Diagnosis, s healer.Step) (healer.Permit, error) {
	n.mu.Lock() // several are asked for at once
	defer n.mu.Unlock()
	if n.refuse != nil {
		return nil, n.refuse
	}
	if n.refuseAt == s.MountPoint.Path {
		return nil, errors.New("it is not wanted")
	}
	n.entered++
	return n, nil
}

func (n *fakeStores) Wants(_ context.Context, _ healer.Case, p healer.MountPoint) (bool, error) {
	return n.wanted[p.PodUID], n.unknown
}

func (n *fakeStores) Inspect(context.Context, healer.Volume) (bool, error) {
	return n.readersOnly, n.noLook
}

func (n *fakeStores) Write(_ context.Context, _ healer.Case, _ healer.MountPoint, onDisk bool) error {
	if !onDisk {
		return nil
	}
	return n.noWrite
}
func (n *fakeStores) Revalidate(context.Context) error { return n.revalidate }
func (n *fakeStores) Leave(err error)                  { n.left = append(n.left, err) }

// fixture is an engine with everything around it.
type fixture struct {
	*fakeNode
	*fakeProvider
	notes  *fakeStores
	engine *Engine
}

func newFixture(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	b := &fixture{
		fakeNode:     newFakeNode(t),
		fakeProvider: &fakeProvider{sick: map[string]healer.Reason{}},
		notes:        &fakeStores{records: map[key]healer.Record{}},
	}
	cfg := Config{
		Node: b.fakeNode, Providers: []healer.Provider{b.fakeProvider}, Gate: b.notes, Records: b.notes, Audit: b.notes,
		Settings: Settings{Drivers: []string{driver}, HealTimeout: time.Minute}, CollectTimeout: time.Minute,
	}
	for _, c := range change {
		c(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.engine = e
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return b
}

// heal makes a call that must give a report.
func (b *fixture) heal(v healer.Volume) healer.Report {
	b.t.Helper()
	r, err := b.engine.Heal(context.Background(), v)
	if err != nil {
		b.t.Fatalf("heal %s: %v", v.Path, err)
	}
	return r
}

// healthy makes a call that leaves a record.
func (b *fixture) healthy() {
	b.t.Helper()
	if v := b.heal(volume).Verdict(); v != healer.Healthy {
		b.t.Fatalf("the volume is %s before the test", v)
	}
}
