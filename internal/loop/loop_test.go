package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const driver, otherDriver = "d.example.com", "e.example.com"

// fakeNode has kubelet's volumes and the mount table, and is the checker that sees them.
type fakeNode struct {
	mu      sync.Mutex
	paths   []facts.VolumePath
	mounts  []facts.Mount
	changes chan struct{}
	// happens has superblocks to which something happened; followed counts the mounts
	// whose superblocks are followed.
	happens  chan node.SuperblockEvent
	followed int
	// drivers are those that are followed.
	drivers []string
	broken  error
	// noAnswer is the error of all checks; nil: they answer.
	noAnswer error
	// keeps is what all volumes suffer from that no step heals; empty: nothing.
	keeps healer.Reason
	// healed changes what heals answer; nil: nothing.
	healed func(healer.Report) (healer.Report, error)
	// hung has the volumes whose checks take as long as a probe timeout.
	hung map[string]bool
	// took is how long every other check takes.
	took time.Duration
	// healTook is how long a heal takes; 0: a tenth of a second.
	healTook time.Duration
	// unwanted are paths that are not to be mounted.
	unwanted map[string]bool
	// unjudged has volumes of which not all can be judged.
	unjudged map[string]bool

	// interval is the loop's; 0: a minute.
	interval time.Duration
	// action is what the loop may do, and dryRun whether the engine then changes nothing.
	action Action
	dryRun bool
	// faults are what ails volumes, beside lost mounts.
	faults map[string]*fault

	checks    []check
	heals     []check
	healing   int
	healsMost int
	running   int
	atOnce    int
	looks     int
	searches  int
	lastMount uint64
	published []healer.Report
	recovered []recovery

	// loop is the one that runs.
	loop *Loop
}

type recovery struct {
	after  time.Duration
	healed bool
}

type check struct {
	id, path string
	at       time.Time
}

func newFakeNode() *fakeNode {
	return &fakeNode{action: Observe, faults: map[string]*fault{}, changes: make(chan struct{}, 1), hung: map[string]bool{}, unwanted: map[string]bool{}, unjudged: map[string]bool{}}
}

func (n *fakeNode) Volumes(context.Context) ([]facts.VolumePath, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.searches++
	return slices.Clone(n.paths), n.broken
}

func (n *fakeNode) VolumeMounts() ([]facts.Mount, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks++
	return slices.Clone(n.mounts), nil
}

// SuperblockEvents tells what happens to superblocks.
func (n *fakeNode) SuperblockEvents(ctx context.Context) Events {
	e := fakeEvents{n, make(chan node.SuperblockEvent)}
	go func() {
		defer close(e.told)
		for {
			select {
			case event := <-n.happens:
				select {
				case e.told <- event:
				case <-ctx.Done():
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return e
}

type fakeEvents struct {
	n    *fakeNode
	told chan node.SuperblockEvent
}

func (e fakeEvents) Events() <-chan node.SuperblockEvent { return e.told }

func (e fakeEvents) Follow(_ context.Context, mounts []facts.Mount, drivers []string) error {
	e.n.do(func() { e.n.followed, e.n.drivers = len(mounts), drivers })
	return nil
}

// Changes passes on what changed tells.
func (n *fakeNode) Changes(ctx context.Context) (<-chan struct{}, error) {
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		for {
			select {
			case <-n.changes:
			case <-ctx.Done():
				return
			}
			select {
			case passed <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	return passed, nil
}

func (n *fakeNode) Check(_ context.Context, v healer.Volume) (healer.Report, error) {
	n.mu.Lock()
	n.checks = append(n.checks, check{v.ID, v.Path, time.Now()})
	n.running++
	n.atOnce = max(n.atOnce, n.running)
	took := n.took
	if n.hung[v.ID] {
		took = 5 * time.Second
	}
	n.mu.Unlock()
	time.Sleep(took)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running--
	if n.noAnswer != nil {
		return healer.Report{}, n.noAnswer
	}
	r := healer.Report{Volume: v, Checked: true}
	if !slices.ContainsFunc(n.mounts, func(m facts.Mount) bool { return m.Path == v.Path }) {
		switch {
		case n.unwanted[v.Path]:
			return healer.Report{}, healer.NotFound("not wanted")
		case n.unjudged[v.ID]:
			r.After.Case.Unjudged = []healer.Unjudged{{MountPoint: healer.MountPoint{Path: v.Path}}}
			return r, nil
		}
		r.After.Conditions = []healer.Condition{{Status: healer.Inaccessible, Reason: healer.NotMounted, MountPoint: v.Path}}
	}
	if f := n.faults[v.ID]; f != nil {
		r.After = f.diagnosis(v)
	}
	r.After.Conditions = append(r.After.Conditions, n.kept(v)...)
	return r, nil
}

func (n *fakeNode) kept(v healer.Volume) []healer.Condition {
	if n.keeps == "" {
		return nil
	}
	return []healer.Condition{{Status: healer.Degraded, Reason: n.keeps, MountPoint: v.Path}}
}

func (n *fakeNode) recover(after time.Duration, healed bool) {
	n.do(func() { n.recovered = append(n.recovered, recovery{after, healed}) })
}

func (n *fakeNode) publish(r healer.Report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.published = append(n.published, r)
}

// add lays out and mounts a path of a volume.
func (n *fakeNode) add(id, path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paths = append(n.paths, facts.VolumePath{VolData: facts.VolData{DriverName: driver, VolumeHandle: id}, Path: path})
	n.lastMount++
	n.mounts = append(n.mounts, facts.Mount{Path: path, ID: n.lastMount, Dev: facts.Dev{Minor: uint32(n.lastMount)}})
}

func (n *fakeNode) unmount(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mounts = slices.DeleteFunc(n.mounts, func(m facts.Mount) bool { return m.Path == path })
}

func (n *fakeNode) changed() {
	select {
	case n.changes <- struct{}{}:
	default:
	}
}

// do changes the fake while nothing else reads it.
func (n *fakeNode) do(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// counts returns how often the mount table was read, and volumes were searched for.
func (n *fakeNode) counts() (looks, searches int) {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.looks, n.searches
}

// since returns the times of checks since an instant, by volume.
func (n *fakeNode) since(start time.Time) map[string][]time.Time {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	at := map[string][]time.Time{}
	for _, c := range n.checks {
		if !c.at.Before(start) {
			at[c.id] = append(at[c.id], c.at)
		}
	}
	return at
}

// rested waits until a volume was not checked within the last changeGap, as the next check
// would wait for that.
func (n *fakeNode) rested(id string) {
	for len(n.since(time.Now().Add(-changeGap))[id]) > 0 {
		time.Sleep(changeGap / 10)
	}
}

// run has a loop run until do returns, in virtual time.
func run(t *testing.T, n *fakeNode, do func()) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n.changes, n.happens = make(chan struct{}, 1), make(chan node.SuperblockEvent)
		l := New(Config{Node: n, Engine: n, Events: n.SuperblockEvents, Publish: n.publish, Interval: cmp.Or(n.interval, time.Minute), Drivers: []string{driver, otherDriver}, Action: n.does, Recovered: n.recover, DryRun: n.dryRun})
		n.loop = l
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.Run(ctx)
		}()
		do()
		cancel()
		<-ended
		if n.running != 0 {
			t.Errorf("%d checks outlived the loop", n.running)
		}
	})
}

func many(count int) *fakeNode {
	n := newFakeNode()
	for i := range count {
		n.add(fmt.Sprint("v", i), fmt.Sprint("/pods/", i))
	}
	return n
}

// perTurn counts the checks since then by what is as long as a turn of an interval of a minute.
func (n *fakeNode) perTurn(start time.Time) (checks map[int]int, most int) {
	checks = map[int]int{}
	for _, at := range n.since(start) {
		for _, one := range at {
			checks[int(one.Sub(start)/(time.Minute/turns))]++
		}
	}
	return checks, slices.Max(slices.Collect(maps.Values(checks)))
}

// Volumes that come together are checked at once, and then spread over an interval.
func TestVolumesThatComeTogetherAreSpread(t *testing.T) {
	n := many(1)
	n.took = time.Millisecond
	run(t, n, func() {
		time.Sleep(5 * time.Minute)
		for i := range 1000 {
			n.add(fmt.Sprint("late", i), fmt.Sprint("/late/", i))
		}
		n.changed()
		time.Sleep(15 * time.Second)
		start := time.Now()
		time.Sleep(time.Minute)
		if checks, most := n.perTurn(start); len(checks) < turns || most > 200 {
			t.Errorf("checks in each turn: %v", checks)
		}
	})
}

// Each of 1,000 volumes is checked once per interval, give or take a turn, and no turn
// has many more checks than another.
func TestVolumesAreSpreadOverTheInterval(t *testing.T) {
	n := many(1000)
	n.took = time.Millisecond
	run(t, n, func() {
		start := time.Now()
		time.Sleep(4 * time.Minute)
		checked := n.since(start)
		if checks, most := n.perTurn(start); most > 200 {
			t.Errorf("checks in each turn: %v", checks)
		}
		for i := range 1000 {
			at := checked[fmt.Sprint("v", i)]
			if first := at[0].Sub(start); first > time.Minute+time.Second {
				t.Errorf("first checked after %s", first)
			}
			for j := range at[1:] {
				if gap := at[j+1].Sub(at[j]); gap < 50*time.Second || gap > 66*time.Second {
					t.Errorf("volume %d: checked again after %s", i, gap)
				}
			}
		}
		if looks, searches := n.counts(); searches > 5 || looks != 1+2*searches { // two each, to follow what is mounted and to know it
			t.Errorf("%d searches, %d looks at the mount table", searches, looks)
		}
	})
}

// A lost mount has just its volume checked, within 100 ms.
func TestLostMountIsCheckedSoon(t *testing.T) {
	n := many(100)
	run(t, n, func() {
		time.Sleep(2*time.Minute + 10*time.Second)
		n.rested("v7")
		lost := time.Now()
		n.unmount("/pods/7")
		n.changed()
		time.Sleep(100 * time.Millisecond)
		checked := n.since(lost)
		if at := checked["v7"]; len(at) != 1 {
			t.Fatalf("checked %d times", len(at))
		}
		if len(checked) > 30 { // a turn of others may have come: 100 in a minute, in twelve turns
			t.Errorf("%d volumes were checked", len(checked))
		}
		time.Sleep(time.Second)
		var sick []healer.Report
		n.do(func() { sick = slices.Clone(n.published) })
		sick = slices.DeleteFunc(sick, func(r healer.Report) bool { return r.After.Healthy() })
		if len(sick) != 1 || sick[0].Volume.ID != "v7" {
			t.Errorf("published: %+v", sick)
		}
	})
}

// A new volume is found by its mount, checked at once, and then once per interval.
func TestNewVolumeIsFoundByItsMount(t *testing.T) {
	n := many(3)
	run(t, n, func() {
		time.Sleep(30 * time.Second)
		came := time.Now()
		n.add("new", "/pods/new")
		n.add("other driver's", "/pods/other")
		n.do(func() { n.paths[len(n.paths)-1].DriverName = "other.example.com" })
		n.changed()
		time.Sleep(time.Minute)
		checked := n.since(came)
		if at := checked["new"]; len(at) < 1 || at[0].Sub(came) > 100*time.Millisecond || len(at) > 3 {
			t.Errorf("checked at %v", at)
		}
		if at := checked["other driver's"]; len(at) != 0 {
			t.Errorf("another driver's was checked at %v", at)
		}
	})
}

// While one volume's mounts change a thousand times a second, it is checked once a
// second, the mount table is read twenty times, and every other one keeps its turn.
func TestStormOfChanges(t *testing.T) {
	n := many(1000)
	n.took = time.Millisecond
	run(t, n, func() {
		time.Sleep(3 * time.Minute)
		before, _ := n.counts()
		start := time.Now()
		for i := range 10_000 {
			n.do(func() {
				n.lastMount++
				n.mounts[i%2].ID = n.lastMount
			})
			n.changed()
			time.Sleep(time.Millisecond)
		}
		stormed := n.since(start)
		for _, id := range []string{"v0", "v1"} {
			if at := stormed[id]; len(at) < 8 || len(at) > 12 {
				t.Errorf("%s: checked %d times in 10 s", id, len(at))
			}
		}
		if looks, _ := n.counts(); looks-before < 150 || looks-before > 250 {
			t.Errorf("the mount table was read %d times in 10 s", looks-before)
		}
		time.Sleep(time.Minute)
		if checked := n.since(start); len(checked) != 1000 {
			t.Errorf("%d volumes were checked", len(checked))
		}
	})
}

// While the mounts of all volumes change all the time, each is checked in its turn, and no
// more often than the checks of a second allow.
func TestStormOfAllVolumes(t *testing.T) {
	n := many(1000)
	n.took = time.Millisecond
	run(t, n, func() {
		time.Sleep(3 * time.Minute)
		start := time.Now()
		for i := range 10_000 {
			n.do(func() {
				n.lastMount++
				n.mounts[i%1000].ID = n.lastMount
			})
			n.changed()
			time.Sleep(time.Millisecond)
		}
		checks := 0
		for _, at := range n.since(start) {
			checks += len(at)
		}
		if checks < 900 || checks > 11*checksPerSecond {
			t.Errorf("%d checks in 10 s", checks)
		}
		time.Sleep(2 * time.Second)
		checked := n.since(start)
		for i := range 1000 {
			if at := checked[fmt.Sprint("v", i)]; len(at) == 0 || len(at) > 3 {
				t.Errorf("v%d was checked %d times in 12 s", i, len(at))
			}
		}
	})
}

// When all mounts change at once, the checks are bounded, and all are made.
func TestAllVolumesChangeAtOnce(t *testing.T) {
	n := many(1000)
	n.took = time.Millisecond
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		n.do(func() { n.mounts = nil })
		n.changed()
		time.Sleep(time.Second)
		if first := n.since(start); len(first) < 100 || len(first) > 2*checksPerSecond {
			t.Errorf("%d checks in the first second", len(first))
		}
		time.Sleep(12 * time.Second) // a turn may have come before, and taken what may begin at once
		if checked := n.since(start); len(checked) != 1000 {
			t.Errorf("%d volumes were checked", len(checked))
		}
	})
}

// Volumes that hang keep none that works from its turn, after the first time.
func TestHungVolumesDelayNoOther(t *testing.T) {
	n := many(200)
	n.took = time.Millisecond
	for i := range 100 {
		n.hung[fmt.Sprint("v", i)] = true
	}
	run(t, n, func() {
		time.Sleep(10 * time.Minute)
		since := time.Now()
		time.Sleep(10 * time.Minute)
		checked := n.since(since)
		for i := 100; i < 200; i++ {
			if at := checked[fmt.Sprint("v", i)]; len(at) < 9 {
				t.Errorf("volume %d was checked %d times in ten minutes", i, len(at))
			}
		}
		for i := range 100 {
			if at := checked[fmt.Sprint("v", i)]; len(at) < 3 {
				t.Errorf("hung volume %d was checked %d times in ten minutes", i, len(at))
			}
		}
		n.do(func() {
			if n.atOnce > maxChecks {
				t.Errorf("%d checks at once", n.atOnce)
			}
		})
	})
}

// The volumes of a driver that answers late keep their turns while all those of another one hang.
func TestHungDriverDelaysNoSlowOne(t *testing.T) {
	n := many(205)
	n.took = slowCheck + slowCheck/5
	for i := range n.paths {
		if i < 200 {
			n.hung[n.paths[i].VolumeHandle] = true
		} else {
			n.paths[i].DriverName = otherDriver
		}
	}
	run(t, n, func() {
		time.Sleep(10 * time.Minute)
		since := time.Now()
		time.Sleep(10 * time.Minute)
		checked := n.since(since)
		for i := 200; i < 205; i++ {
			if at := checked[fmt.Sprint("v", i)]; len(at) < 8 {
				t.Errorf("volume %d was checked %d times in ten minutes", i, len(at))
			}
		}
	})
}

// When all volumes of a driver begin to hang, those of another keep their turns, and what breaks is healed at once.
func TestDriverThatBeginsToHangDelaysNoOther(t *testing.T) {
	n := acting(1000)
	n.took = time.Millisecond
	for i := range 500 {
		n.paths[i].DriverName = otherDriver
	}
	run(t, n, func() {
		time.Sleep(10 * time.Minute)
		n.do(func() {
			for i := 500; i < 1000; i++ {
				n.hung[fmt.Sprint("v", i)] = true
			}
		})
		time.Sleep(30 * time.Second)
		start := time.Now()
		n.breaks("v0", fault{reason: healer.Disconnected})
		time.Sleep(90 * time.Second)
		if at := n.healsOf("v0", start); len(at) != 1 || at[0] > 2*time.Second {
			t.Errorf("healed at %v", at)
		}
		if checked := n.since(start)["v499"]; len(checked) == 0 || checked[0].Sub(start) > 70*time.Second {
			t.Errorf("another volume was checked at %v", checked)
		}
	})
}

// A volume whose heal takes long, as one does in which a driver or a daemon starts anew, is none that hangs.
func TestLongHealIsNoSlowCheck(t *testing.T) {
	n := acting(200)
	n.healTook = 3 * time.Second
	for i := range 199 {
		n.hung[fmt.Sprint("v", i)] = true
	}
	run(t, n, func() {
		time.Sleep(10 * time.Minute)
		for range 2 {
			start := time.Now()
			n.breaks("v199", fault{reason: healer.Disconnected})
			time.Sleep(30 * time.Second)
			if at := n.healsOf("v199", start); len(at) != 1 {
				t.Errorf("healed at %v", at)
			}
		}
	})
}

// A check that hangs counts until it ends, also when its volume is gone by then: a tenant who deletes
// pods and volumes that hang gets no more of the checks than one who keeps them.
func TestHungChecksOfVolumesThatAreGoneCount(t *testing.T) {
	n := many(100)
	for i := range 100 {
		n.hung[fmt.Sprint("v", i)] = true
	}
	run(t, n, func() {
		time.Sleep(10 * time.Minute)
		for range 10 {
			synctest.Wait()
			n.do(func() {
				n.atOnce = n.running
				for _, c := range n.checks[len(n.checks)-n.running:] {
					n.paths = slices.DeleteFunc(n.paths, func(p facts.VolumePath) bool { return p.Path == c.path })
				}
			})
			n.add("new", "/pods/new") // volumes are searched for
			n.changed()
			time.Sleep(2 * time.Second)
			n.do(func() {
				if n.atOnce > maxSlowOfOne+1 { // beside the new volume
					t.Errorf("%d checks at once", n.atOnce)
				}
			})
			n.unmount("/pods/new")
			n.changed()
			time.Sleep(30 * time.Second)
		}
	})
}

// What is published and mounted is named before what lost its mount, and that before
// what is staged: the next one only if there is nothing at the one before.
func TestPathsOfAVolume(t *testing.T) {
	n := many(0)
	for _, path := range []string{"/staging", "/pods/lost", "/pods/mounted"} {
		n.add("v", path)
	}
	n.paths[0].Staging = true
	n.unmount("/pods/lost")
	n.unwanted["/pods/lost"] = true
	run(t, n, func() {
		for _, want := range [][]string{{"/pods/mounted"}, {"/pods/lost", "/staging"}, {"/pods/lost"}, nil} {
			n.do(func() { n.checks = nil })
			time.Sleep(70 * time.Second)
			var got []string
			n.do(func() {
				for _, c := range n.checks {
					got = append(got, c.path)
				}
			})
			slices.Sort(got)
			got = slices.Compact(got)
			if !slices.Equal(got, want) {
				t.Errorf("checked at %v, want %v", got, want)
			}
			switch {
			case want == nil:
			case want[0] == "/pods/mounted":
				n.do(func() { n.paths = slices.Delete(n.paths, 2, 3) }) // its pod is gone
				n.unmount("/pods/mounted")
			case len(want) == 2:
				n.unmount("/staging")
			default:
				n.do(func() { n.paths = nil })
			}
			n.changed()
			time.Sleep(70 * time.Second)
		}
	})
}

// Where the search could not see everything, what it found is new, what it could not see
// stays, and what is no longer where it could see goes.
func TestSearchSeesAPart(t *testing.T) {
	n := many(3)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		n.do(func() {
			n.paths = n.paths[:1] // v1 and v2 are not found
			n.broken = &facts.UnlistedError{Paths: []string{"/pods/1"}, Why: "no permission"}
		})
		n.add("new", "/pods/new")
		n.changed()
		time.Sleep(time.Minute)
		start := time.Now()
		time.Sleep(2 * time.Minute)
		checked := n.since(start)
		for id, want := range map[string]bool{"v0": true, "v1": true, "v2": false, "new": true} {
			if got := len(checked[id]) > 0; got != want {
				t.Errorf("%s: checked %t", id, got)
			}
		}
	})
}

// A search that fails is made again, and forgets no volume.
func TestSearchFails(t *testing.T) {
	n := many(2)
	n.broken = errors.New("no worker")
	run(t, n, func() {
		time.Sleep(time.Minute)
		_, searches := n.counts()
		if checked := n.since(time.Time{}); len(checked) != 0 || searches < 5 || searches > 8 {
			t.Errorf("%v, %d searches", checked, searches)
		}
		n.do(func() { n.broken = nil })
		time.Sleep(2 * time.Minute)
		n.do(func() { n.broken = errors.New("no worker") })
		since := time.Now()
		time.Sleep(2 * time.Minute)
		if checked := n.since(since); len(checked) != 2 {
			t.Errorf("%v", checked)
		}
	})
}
