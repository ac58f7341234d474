package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// fault is what ails a volume.
type fault struct {
	reason healer.Reason
	// server is what the volume lies on; empty: a local disk.
	server string
	// err is why the step fails; nil: it heals.
	err error
	// refused is whether the gate lets no step in, away whether that is because the driver's
	// pod is not ready.
	refused, away bool
	// waits says why the driver must not be called now.
	waits string
	// restages is whether the step has the driver stage the volume anew, inputs whether with
	// something else than the last time.
	restages, inputs bool
}

func (f fault) diagnosis(v healer.Volume) healer.Diagnosis {
	dev := facts.Dev{Major: 1, Minor: 1}
	sb := healer.Superblock{Dev: dev, FSType: "ext4", Source: "/dev/sda"}
	if f.server != "" {
		sb.FSType, sb.Source = "nfs4", f.server+":/export"
	}
	d := healer.Diagnosis{
		Case:       healer.Case{Volume: v, Superblocks: map[facts.Dev]healer.Superblock{dev: sb}},
		Conditions: []healer.Condition{{Status: healer.Inaccessible, Reason: f.reason, MountPoint: v.Path, Acute: true}},
		Steps:      []healer.Step{{Name: "replace", MountPoint: healer.MountPoint{Path: v.Path}, Heals: []healer.Reason{f.reason}}},
	}
	if f.restages {
		d.Steps[0].Cost, d.Steps[0].InputsChanged = healer.Restage, f.inputs
	}
	if f.waits != "" {
		d.Steps[0].Cost, d.Steps[0].Refused = healer.Restage, f.waits
	}
	return d
}

func (n *fakeNode) does() Action {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.action
}

func (n *fakeNode) Heal(_ context.Context, v healer.Volume) (healer.Report, error) {
	n.mu.Lock()
	n.heals = append(n.heals, check{v.ID, v.Path, time.Now()})
	n.healing++
	n.healsMost = max(n.healsMost, n.healing)
	took := cmp.Or(n.healTook, 100*time.Millisecond)
	n.mu.Unlock()
	time.Sleep(took)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.healing--
	f := n.faults[v.ID]
	switch {
	case n.unwanted[v.Path]:
		return healer.Report{}, healer.NotFound("not wanted")
	case f == nil:
		return healer.Report{Volume: v}, nil
	case f.away:
		d := f.diagnosis(v)
		return healer.Report{Volume: v, Before: d, After: d, Refused: []healer.Refusal{{Step: "replace", Rule: healer.RuleDriverGrace}}}, nil
	case f.refused:
		d := f.diagnosis(v)
		return healer.Report{Volume: v, Before: d, After: d, Refused: []healer.Refusal{{Step: "replace", Why: "no answer"}}}, nil
	}
	r := healer.Report{Volume: v, Before: f.diagnosis(v), Steps: []healer.Outcome{{Step: "replace", MountPoint: v.Path, Err: f.err}}}
	if f.err == nil {
		delete(n.faults, v.ID)
		r.After.Conditions = n.kept(v)
	} else {
		r.After = r.Before
	}
	if n.healed != nil {
		return n.healed(r)
	}
	return r, nil
}

// left returns why the loop leaves volumes alone, in the order in which it published
// that, and each once.
func (n *fakeNode) left() (all []string) {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.published {
		if text := r.Left.String(); text != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// healsOf returns the times of a volume's heals, since an instant.
func (n *fakeNode) healsOf(id string, start time.Time) (at []time.Duration) {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.heals {
		if h.id == id && !h.at.Before(start) {
			at = append(at, h.at.Sub(start).Round(time.Second))
		}
	}
	return at
}

func acting(count int) *fakeNode {
	n := many(count)
	n.action = Heal
	return n
}

// breaks has a volume fail, and be checked soon: its mounts changed, too.
func (n *fakeNode) breaks(id string, f fault) {
	n.do(func() { n.faults[id] = &f })
	n.remount(id)
	n.changed()
}

// remount gives a volume's path another mount.
func (n *fakeNode) remount(id string) {
	n.do(func() {
		for i, m := range n.mounts {
			if m.Path == "/pods/"+id[1:] {
				n.lastMount++
				n.mounts[i].ID = n.lastMount
			}
		}
	})
}

// What may pass by itself is healed when two checks in a row found it, and what cannot at
// once. A loop that only observes heals nothing.
func TestHeals(t *testing.T) {
	for name, tc := range map[string]struct {
		action Action
		reason healer.Reason
		want   []time.Duration
	}{
		"may pass by itself": {Heal, healer.NotMounted, []time.Duration{5 * time.Second}},
		"cannot pass":        {Heal, healer.Disconnected, []time.Duration{0}},
		"observe":            {Observe, healer.Disconnected, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := acting(2)
			n.action = tc.action
			run(t, n, func() {
				time.Sleep(2 * time.Minute)
				start := time.Now()
				n.breaks("v0", fault{reason: tc.reason})
				time.Sleep(5 * time.Minute)
				// A second more where it was checked right before.
				got := n.healsOf("v0", start)
				if !slices.EqualFunc(got, tc.want, func(got, want time.Duration) bool { return got >= want && got <= want+time.Second }) {
					t.Errorf("healed at %v, want %v", got, tc.want)
				}
				if got := n.healsOf("v1", start); got != nil {
					t.Errorf("the other one was healed at %v", got)
				}
			})
		})
	}
}

// A blip is not acted upon.
func TestBlip(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		n.breaks("v0", fault{reason: healer.NotMounted})
		time.Sleep(2 * time.Second)
		n.do(func() { delete(n.faults, "v0") })
		time.Sleep(5 * time.Minute)
		if got := n.healsOf("v0", start); got != nil {
			t.Errorf("healed at %v", got)
		}
	})
}

// Each tier has its schedule, with up to a fifth more, and what was given up is tried again
// when something changes.
func TestSchedules(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want []time.Duration // between the heals of an hour
	}{
		"transient": {syscall.EBUSY, []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 660, 660}},
		"retriable": {errors.New("what?"), []time.Duration{60, 120, 240, 480, 660, 660}},
		"terminal":  {syscall.ENODEV, nil},
		"rights":    {syscall.EPERM, []time.Duration{30}},
	} {
		t.Run(name, func(t *testing.T) {
			n := acting(1)
			run(t, n, func() {
				time.Sleep(2 * time.Minute)
				start := time.Now()
				n.breaks("v0", fault{reason: healer.Disconnected, err: tc.err})
				time.Sleep(time.Hour)
				at := n.healsOf("v0", start)
				var gaps []time.Duration
				for i := range at[1:] {
					gaps = append(gaps, at[i+1]-at[i])
				}
				for i, want := range tc.want {
					want *= time.Second
					if i >= len(gaps) || gaps[i] < want || gaps[i] > want+want/5+2*time.Second {
						t.Errorf("healed at %v, gaps %v, want %v s", at, gaps, tc.want)
						return
					}
				}
				if name != "transient" && name != "retriable" && len(gaps) != len(tc.want) {
					t.Errorf("healed at %v, want %d tries", at, len(tc.want)+1)
				}
				n.breaks("v0", fault{reason: healer.Disconnected})
				time.Sleep(2 * time.Second)
				healed := false
				n.do(func() { healed = n.faults["v0"] == nil })
				if !healed {
					t.Error("something changed, and it was not tried again")
				}
			})
		})
	}
}

// A condition that comes and goes, and a driver that mounts again and again, begin no
// schedule anew.
func TestNoScheduleBeginsAnew(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		most int // heals in an hour
	}{
		"transient": {syscall.EBUSY, 16},
		"retriable": {errors.New("what?"), 16},
		"terminal":  {syscall.ENODEV, 16},
	} {
		t.Run(name, func(t *testing.T) {
			n := acting(1)
			n.action = Observe
			run(t, n, func() {
				n.breaks("v0", fault{reason: healer.Disconnected, err: tc.err})
				time.Sleep(2 * time.Minute)
				n.do(func() { n.action = Heal })
				start := time.Now()
				for i := range 3600 {
					n.do(func() { n.faults["v0"].reason = []healer.Reason{healer.Disconnected, healer.IOError}[i%2] })
					time.Sleep(time.Second)
				}
				if got := n.healsOf("v0", start); len(got) > tc.most || len(got) < 2 {
					t.Errorf("healed %d times: %v", len(got), got)
				}
			})
		})
	}
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.ENODEV})
		for range 1800 {
			time.Sleep(2 * time.Second)
			n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.ENODEV})
		}
		if got := n.healsOf("v0", start); len(got) > 61 {
			t.Errorf("a driver that mounts each 2 s: healed %d times in an hour", len(got))
		}
	})
}

// Of many volumes behind one server that is dead one is tried at a time, ever more rarely;
// when it is back one is, and then all, never more than a few at once. The volumes of others
// are not held back.
func TestManyOfOneBackend(t *testing.T) {
	n := acting(120)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		for i := range 100 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, server: "filer", err: syscall.EBUSY})
		}
		n.breaks("v110", fault{reason: healer.Disconnected})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		n.mu.Lock()
		tries := len(n.heals)
		most := n.healsMost
		n.mu.Unlock()
		// 5 s, 10 s, … 5 min 20 s: eight trials in ten minutes, what began before the
		// third was known to be sick, and the other volume.
		if tries > 8+manySick+1 || most >= maxHeals {
			t.Errorf("%d heals, %d at once, while the server was dead", tries, most)
		}
		if got := n.healsOf("v110", start); len(got) != 1 {
			t.Errorf("another backend's volume was healed at %v", got)
		}
		n.do(func() {
			n.heals = nil
			for _, f := range n.faults {
				f.err = nil
			}
		})
		time.Sleep(11*time.Minute + 2*time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		// The first alone, and then not all of them.
		if second := n.heals[1].at.Sub(n.heals[0].at); second < 100*time.Millisecond {
			t.Errorf("the second heal began %s after the first, which takes 100 ms", second)
		}
		if len(n.faults) > 0 {
			t.Errorf("%d are still sick", len(n.faults))
		}
		if most := n.healsMost; most > maxHeals {
			t.Errorf("%d heals at once", most)
		}
	})
}

// However many volumes of however many backends fail, a node begins a bounded number of
// heals in a minute.
func TestBudget(t *testing.T) {
	n := acting(500)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		for i := range 500 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, server: fmt.Sprint("filer-", i)})
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		byMinute := map[time.Duration]int{}
		for _, h := range n.heals {
			byMinute[h.at.Sub(start)/time.Minute]++
		}
		for m, count := range byMinute {
			if count > healsPerMinute+healsBurst {
				t.Errorf("%d heals in minute %d", count, m)
			}
		}
		if len(n.faults) > 0 {
			t.Errorf("%d are still sick", len(n.faults))
		}
	})
}

// While the gate lets nothing in, it is asked ever more rarely; afterwards everything is
// healed, and in no second many at once.
func TestRefusals(t *testing.T) {
	n := acting(50)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		for i := range 50 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, server: fmt.Sprint("filer-", i), refused: true})
		}
		time.Sleep(10 * time.Minute)
		if got := n.healsOf("v7", start); len(got) > 4 {
			t.Errorf("asked at %v", got)
		}
		n.do(func() {
			for _, f := range n.faults {
				f.refused = false
			}
		})
		back := time.Now()
		time.Sleep(12 * time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.faults) > 0 {
			t.Errorf("%d are still sick", len(n.faults))
		}
		heals := slices.DeleteFunc(slices.Clone(n.heals), func(h check) bool { return h.at.Before(back) })
		most := 0 // in any second
		for i, first := range heals {
			within := slices.IndexFunc(heals[i:], func(h check) bool { return h.at.Sub(first.at) >= time.Second })
			if within < 0 {
				within = len(heals) - i
			}
			most = max(most, within)
		}
		if most > healsBurst+healsPerMinute/60 {
			t.Errorf("%d heals in one second", most)
		}
	})
}

// What keeps a step from succeeding for good is published with its error, until the volume
// is well.
func TestWhatFailedIsPublished(t *testing.T) {
	for want, err := range map[healer.LeftReason]error{healer.PermissionMissing: syscall.EPERM, healer.TerminalError: syscall.ENODEV} {
		n := acting(1)
		run(t, n, func() {
			time.Sleep(2 * time.Minute)
			n.breaks("v0", fault{reason: healer.Disconnected, err: fmt.Errorf("the whole story: %w", err)})
			time.Sleep(time.Hour)
			n.do(func() {
				if left := n.published[len(n.published)-1].Left; left.Reason != want || !strings.Contains(left.Detail, "replace at /pods/0: the whole story") {
					t.Errorf("%v: left alone because %+v", err, left)
				}
				delete(n.faults, "v0")
			})
			time.Sleep(2 * time.Minute)
			n.do(func() {
				if left := n.published[len(n.published)-1].Left; left != (healer.LeftAlone{}) {
					t.Errorf("%v: it is well, and left alone because %+v", err, left)
				}
			})
		})
	}
}

// A check after which a heal comes says so; the report of the heal, and of checks after which
// none comes, do not.
func TestThatAHealFollowsIsPublished(t *testing.T) {
	for action, follows := range map[Action]bool{Heal: true, Observe: false, Heal + " dry": false} {
		n := acting(1)
		what, dry := strings.CutSuffix(string(action), " dry")
		n.action, n.dryRun = Action(what), dry
		run(t, n, func() {
			time.Sleep(2 * time.Minute)
			n.do(func() { n.published = nil })
			n.breaks("v0", fault{reason: healer.Disconnected})
			time.Sleep(2 * time.Minute)
			n.do(func() {
				if len(n.published) == 0 || n.published[0].HealFollows != follows {
					t.Errorf("%s: published %+v", action, n.published)
				}
				if last := n.published[len(n.published)-1]; last.HealFollows {
					t.Errorf("%s: in the end a heal follows: %+v", action, last)
				}
			})
		})
	}
}

// What the loop does may change while it runs.
func TestActionChanges(t *testing.T) {
	n := acting(1)
	n.action = Off
	run(t, n, func() {
		start := time.Now()
		n.breaks("v0", fault{reason: healer.Disconnected})
		time.Sleep(5 * time.Minute)
		if len(n.since(start)) > 0 {
			t.Error("it was checked")
		}
		n.do(func() { n.action = Observe })
		time.Sleep(5 * time.Minute)
		if len(n.since(start)["v0"]) == 0 || n.healsOf("v0", start) != nil {
			t.Errorf("observe: checks at %v, heals at %v", n.since(start), n.healsOf("v0", start))
		}
		n.do(func() { n.action = Heal })
		time.Sleep(2 * time.Minute)
		if got := n.healsOf("v0", start); len(got) != 1 {
			t.Errorf("healed at %v", got)
		}
	})
}

// Something that happens to a superblock has its volumes checked at once, and no others.
func TestSuperblockEvent(t *testing.T) {
	n := many(3)
	run(t, n, func() {
		time.Sleep(90 * time.Second)
		n.rested("v1")
		start := time.Now()
		n.do(func() {
			if n.followed != 3 {
				t.Errorf("%d are followed", n.followed)
			}
		})
		n.happens <- node.SuperblockEvent{Dev: n.mounts[1].Dev}
		n.happens <- node.SuperblockEvent{Dev: facts.Dev{Major: 99}}
		time.Sleep(time.Second)
		if got := n.since(start); len(got["v1"]) != 1 || got["v1"][0].Sub(start) > 100*time.Millisecond {
			t.Errorf("checked at %v", got)
		}
	})
}

// Another process may have taken a FUSE connection over from a daemon that ended: it is
// searched for at once, and not with the next turn.
func TestSuccessorIsFollowed(t *testing.T) {
	for fsType, follows := range map[string]bool{"fuse.rclone": true, "ext4": false} {
		n := many(3)
		for i := range n.mounts {
			n.mounts[i].FSType = fsType
		}
		run(t, n, func() {
			time.Sleep(90 * time.Second)
			before := 0
			n.do(func() { before, n.followed = n.searches, 0 })
			n.happens <- node.SuperblockEvent{Dev: n.mounts[1].Dev}
			time.Sleep(10 * time.Millisecond)
			n.do(func() {
				if (n.followed == 3) != follows || (n.searches > before) != follows {
					t.Errorf("%s: %d searches, %d followed", fsType, n.searches-before, n.followed)
				}
			})
		})
	}
}

// How long a volume was abnormal is counted when it is found healthy, with what healed it.
func TestRecovered(t *testing.T) {
	for name, tc := range map[string]struct {
		action      Action
		passesAfter time.Duration // until it passes by itself; zero: it does not
		sickAtLeast time.Duration
		healed      bool
	}{
		"healed by the loop": {action: Heal, sickAtLeast: confirmAfter, healed: true},
		"passes by itself":   {action: Observe, passesAfter: 2 * time.Minute, sickAtLeast: 119 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			n := acting(1)
			n.action = tc.action
			run(t, n, func() {
				time.Sleep(2 * time.Minute)
				n.breaks("v0", fault{reason: healer.NotMounted})
				if tc.passesAfter > 0 {
					time.Sleep(tc.passesAfter)
					n.do(func() { delete(n.faults, "v0") })
				}
				time.Sleep(5 * time.Minute)
				n.do(func() {
					if len(n.recovered) != 1 || n.recovered[0].healed != tc.healed ||
						n.recovered[0].after < tc.sickAtLeast || n.recovered[0].after > tc.sickAtLeast+70*time.Second {
						t.Errorf("recovered: %v", n.recovered)
					}
				})
			})
		})
	}
}

// A check without an answer, as while a call heals the volume, hides no sick volume.
func TestSickWhileThereIsNoAnswer(t *testing.T) {
	n := many(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		n.breaks("v0", fault{reason: healer.Disconnected})
		time.Sleep(time.Minute)
		for what, err := range map[string]error{"busy": &healer.Error{Kind: healer.KindBusy}, "failed": errors.New("no answer")} {
			n.do(func() { n.noAnswer = err })
			time.Sleep(5 * time.Minute)
			s := n.loop.States(context.Background()).Volumes
			if len(s) != 1 || s[0].Verdict != healer.Abnormal || s[0].Health[0].Reason != healer.Disconnected || time.Since(s[0].Checked) < 4*time.Minute {
				t.Errorf("%s: %+v", what, s)
			}
		}
		n.do(func() { n.noAnswer = healer.NotFound("no such volume") })
		time.Sleep(4 * time.Minute) // three checks, if two of them are less than an interval apart
		if s := n.loop.States(context.Background()).Volumes; len(s) != 1 || s[0].Verdict != "" {
			t.Errorf("not there: %+v", s)
		}
	})
}
