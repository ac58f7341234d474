package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestBackend(t *testing.T) {
	for name, tc := range map[string]struct {
		sb   healer.Superblock
		want string
	}{
		"a server": {healer.Superblock{FSType: "nfs4", Source: "10.0.0.1:/export"}, "server 10.0.0.1"},
		"a disk":   {healer.Superblock{FSType: "xfs", Device: &facts.BlockDevice{Identity: facts.Identity{WWID: "naa.5"}}}, "driver d"},
		"no disk":  {healer.Superblock{FSType: "tmpfs"}, "driver d"},
	} {
		var r healer.Report
		r.After.Case.Superblocks = map[facts.Dev]healer.Superblock{{Minor: 1}: tc.sb}
		if got := backendOf(r, "d"); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// How one volume after the other fared says nothing of a backend of which many fail at
// once: one is tried, and at once.
func TestEachTimeThatManyFailBeginsWithATrial(t *testing.T) {
	for name, tc := range map[string]struct {
		stays  fault // what one volume suffers from all the time
		healed int   // how many are healed meanwhile
	}{
		"heals that helped": {fault{refused: true}, 5},
		"heals that failed": {fault{err: syscall.EBUSY}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			n := acting(20)
			run(t, n, func() {
				time.Sleep(2 * time.Minute)
				tc.stays.reason = healer.Disconnected
				n.breaks("v19", tc.stays)
				for i := range tc.healed {
					n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected})
					time.Sleep(time.Hour)
				}
				time.Sleep(time.Hour)
				n.do(func() { n.healsMost, n.heals = 0, nil })
				start := time.Now()
				for i := range 10 {
					n.breaks(fmt.Sprint("v", i), fault{reason: healer.NotMounted, err: syscall.EBUSY})
				}
				time.Sleep(confirmAfter + 3*time.Second)
				n.do(func() {
					n.heals = slices.DeleteFunc(n.heals, func(h check) bool { return h.id == "v19" })
					if n.healsMost != 1 || len(n.heals) == 0 {
						t.Errorf("%d at once, heals within %s: %v", n.healsMost, time.Since(start), n.heals)
					}
				})
			})
		})
	}
}

// What happens to many volumes that were left alone does not have all of them tried at once.
func TestChangesAtManyVolumesThatWereLeftAlone(t *testing.T) {
	n := acting(20)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for i := range 20 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, server: "filer", err: syscall.ENODEV})
		}
		time.Sleep(10 * time.Hour)
		n.do(func() { n.healsMost = 0 })
		for _, m := range n.mounts {
			n.happens <- node.SuperblockEvent{Dev: m.Dev}
		}
		time.Sleep(10 * time.Second)
		n.do(func() {
			if n.healsMost != 1 {
				t.Errorf("%d heals at once", n.healsMost)
			}
		})
	})
}

var driverIsAwayExamples = map[string]struct {
	count  int
	fault  fault
	told   bool
	within time.Duration
}{
	"one":          {count: 1, fault: fault{err: healer.ErrDriverAway}, told: true, within: time.Second},
	"many":         {count: 20, fault: fault{err: healer.ErrDriverAway}, told: true, within: 3 * time.Second},
	"not ready":    {count: 20, fault: fault{away: true}, told: true, within: 3 * time.Second},
	"one, untold":  {count: 1, fault: fault{err: healer.ErrDriverAway}, within: 6 * time.Second},
	"many, untold": {count: 20, fault: fault{err: healer.ErrDriverAway}, within: 10 * time.Second},
	"also of a row": {
		count: 20, fault: fault{err: fmt.Errorf("restage: %w", errors.Join(healer.ErrDriverAway, syscall.ECONNREFUSED))}, told: true,
		within: 3 * time.Second,
	},
}

// A driver at whose socket nobody listens, or whose pod is not ready, was not tried: when it is
// there, its volumes are healed as soon as if they had only just failed, also where nothing
// tells of it. Until then the other volumes have their turn.
func TestDriverIsAway(t *testing.T) {
	for name, tc := range driverIsAwayExamples {
		t.Run(name, func(t *testing.T) {
			n := acting(tc.count + 1)
			last := fmt.Sprint("v", tc.count)
			tc.fault.reason = healer.Disconnected
			run(t, n, func() {
				time.Sleep(2 * time.Minute)
				for i := range tc.count {
					n.breaks(fmt.Sprint("v", i), tc.fault)
				}
				time.Sleep(5 * time.Second)
				n.do(func() {
					for _, f := range n.faults {
						f.err, f.away = nil, false
					}
				})
				if tc.told {
					n.happens <- node.SuperblockEvent{Driver: driver}
				}
				time.Sleep(tc.within)
				n.do(func() {
					if left := len(n.faults); left > 0 {
						t.Errorf("%d volumes of %d are not healed", left, tc.count)
					}
				})

				start := time.Now()
				for i := range tc.count {
					n.breaks(fmt.Sprint("v", i), tc.fault)
				}
				time.Sleep(time.Minute)
				n.breaks(last, fault{reason: healer.Disconnected, server: "another"})
				time.Sleep(2 * time.Second)
				n.do(func() {
					if n.faults[last] != nil {
						t.Error("the volume of another driver is not healed")
					}
				})
				time.Sleep(time.Hour)
				n.do(func() {
					asked := 0
					for _, h := range n.heals {
						if h.at.After(start) && h.id != last {
							asked++
						}
					}
					if asked > 40 {
						t.Errorf("%d heals in an hour", asked)
					}
				})
				for _, v := range n.loop.States(context.Background()).Volumes {
					if v.Tries > 1 { // those before it came back
						t.Errorf("%d tries of %s", v.Tries, v.VolumeID)
					}
				}
			})
		})
	}
}

// A volume whose driver may still be at work is looked at again after a minute, however long the
// interval is.
func TestDriverIsWaitedFor(t *testing.T) {
	n := acting(1)
	n.interval = time.Hour
	n.healed = func(r healer.Report) (healer.Report, error) {
		if f := n.faults["v0"]; f != nil {
			f.waits = "it may still be at work"
			r.After = f.diagnosis(r.Volume)
		}
		return r, nil
	}
	run(t, n, func() {
		time.Sleep(2 * time.Hour)
		n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.EAGAIN})
		time.Sleep(10 * time.Minute)
		n.do(func() {
			if len(n.heals) != 1 {
				t.Errorf("the driver was called %d times", len(n.heals))
			}
			n.faults["v0"].waits, n.faults["v0"].err = "", nil
		})
		time.Sleep(waitGap + 10*time.Second)
		n.do(func() {
			if n.faults["v0"] != nil {
				t.Error("it is not healed")
			}
		})
	})
}

// What a driver refused for good is tried again, once, when what it is called with has changed.
func TestChangedInputsAreTriedAtOnce(t *testing.T) {
	n := acting(1)
	n.interval = time.Hour
	n.healed = func(r healer.Report) (healer.Report, error) {
		if f := n.faults["v0"]; f != nil {
			f.inputs = false
			r.After = f.diagnosis(r.Volume)
		}
		return r, nil
	}
	run(t, n, func() {
		time.Sleep(2 * time.Hour)
		n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.ENOSYS, restages: true})
		time.Sleep(time.Hour)
		for tries := range 3 {
			n.do(func() {
				if len(n.heals) != 1+tries {
					t.Errorf("it was tried %d times after %d changes", len(n.heals), tries)
				}
				n.faults["v0"].inputs = true
			})
			time.Sleep(waitGap + 10*time.Second)
		}
	})
}

// Inputs that changed, with which the driver was then not called, are no reason to try at each check.
func TestChangedInputsOfAStepThatIsRefused(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		n.breaks("v0", fault{reason: healer.Disconnected, refused: true, restages: true, inputs: true})
		time.Sleep(10 * time.Hour)
		if at := n.healsOf("v0", start); len(at) > 60 {
			t.Errorf("it was tried %d times in ten hours", len(at))
		}
	})
}

// Inputs that change while the driver is called, which had the ones before, are a reason to try again, also
// where it said that another try cannot help.
func TestInputsThatChangeDuringATry(t *testing.T) {
	n := acting(1)
	n.healed = func(r healer.Report) (healer.Report, error) {
		if f := n.faults["v0"]; f != nil {
			f.inputs = len(n.heals) == 1
			r.After = f.diagnosis(r.Volume)
		}
		return r, nil
	}
	run(t, n, func() {
		time.Sleep(2 * time.Hour)
		n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.ENOSYS, restages: true})
		time.Sleep(time.Hour)
		n.do(func() {
			if len(n.heals) != 2 {
				t.Errorf("it was tried %d times", len(n.heals))
			}
		})
	})
}

// A volume whose driver must not be called yet is not checked again and again for it.
func TestChangedInputsOfAStepThatWaits(t *testing.T) {
	n := acting(1)
	n.interval = time.Hour
	run(t, n, func() {
		time.Sleep(2 * time.Hour)
		n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.EIO, restages: true})
		time.Sleep(time.Minute)
		n.do(func() { n.faults["v0"].inputs, n.faults["v0"].waits = true, "the driver may be at work" })
		time.Sleep(2 * waitGap)
		start := time.Now()
		time.Sleep(5 * waitGap)
		if checks := len(n.since(start)["v0"]); checks > 6 {
			t.Errorf("it was checked %d times in %s", checks, 5*waitGap)
		}
		n.do(func() { n.faults["v0"].waits, n.faults["v0"].err = "", nil })
		time.Sleep(waitGap + 10*time.Second)
		n.do(func() {
			if n.faults["v0"] != nil {
				t.Error("it is not healed")
			}
		})
	})
}

// A change of a volume that was left alone counts also while an earlier change waits for its
// interval: both together.
func TestChangeWhileAnotherWaits(t *testing.T) {
	now := time.Unix(1000, 0)
	v := &volume{sick: sickness{left: healer.LeftAlone{Reason: healer.TerminalError}, steps: []string{"replace"}}}
	v.retried = now.Add(40 * time.Second)
	v.retry(time.Minute, now)
	if !v.sick.healable() || !v.notBefore.Equal(v.retried) || !v.retried.Equal(now.Add(40*time.Second)) {
		t.Errorf("left alone: %v, tried again at %s, the change before counts at %s", v.sick.left, v.notBefore, v.retried)
	}
}

// A driver that came back has its volumes tried at once, of many one first, and no others.
func TestDriverCameBack(t *testing.T) {
	for _, tc := range []struct {
		count  int
		reason healer.Reason
		server string
		within time.Duration
	}{
		{1, healer.Disconnected, "", 2 * time.Second},
		{20, healer.Disconnected, "", 2 * time.Second},
		{20, healer.StaleFileHandle, "filer", 2 * time.Second},
		{1, healer.DriverReportsAbnormal, "", 2*time.Second + confirmAfter}, // may pass by itself
	} {
		t.Run(fmt.Sprintf("%d %s %s", tc.count, tc.reason, tc.server), func(t *testing.T) {
			count := tc.count
			n := acting(count)
			run(t, n, func() {
				time.Sleep(2 * time.Minute)
				for i := range count {
					n.breaks(fmt.Sprint("v", i), fault{reason: tc.reason, server: tc.server, err: syscall.EIO})
				}
				time.Sleep(10 * time.Hour)
				n.rested("v0")
				tried := func() int {
					start := time.Now()
					time.Sleep(tc.within)
					volumes := map[string]bool{}
					n.do(func() {
						for _, h := range n.heals {
							if !h.at.Before(start) {
								volumes[h.id] = true
							}
						}
					})
					return len(volumes)
				}
				heals := func() (count int) {
					n.do(func() { count = len(n.heals) })
					return count
				}
				for before := heals(); heals() == before; { // then none is due by itself for minutes
					time.Sleep(time.Second)
				}
				n.happens <- node.SuperblockEvent{Driver: "other.example.com"}
				if got := tried(); got == count {
					t.Error("another driver came back, and all volumes were tried")
				}
				n.do(func() {
					for _, f := range n.faults {
						f.err = nil
					}
				})
				n.happens <- node.SuperblockEvent{Driver: driver}
				if got := tried(); got != count {
					t.Errorf("the driver came back, and %d volumes of %d were tried", got, count)
				}
			})
		})
	}
}

// A daemon that ends with its driver right after it was started tells nothing: it is not
// followed yet.
func TestDriverCameBackOfWhatNothingTold(t *testing.T) {
	n := acting(1)
	n.interval = time.Hour
	run(t, n, func() {
		time.Sleep(2 * time.Hour)
		n.rested("v0")
		n.do(func() { n.faults["v0"] = &fault{reason: healer.Disconnected} })
		start := time.Now()
		n.happens <- node.SuperblockEvent{Driver: driver}
		time.Sleep(2 * time.Second)
		n.do(func() {
			if len(n.heals) == 0 || n.heals[len(n.heals)-1].at.Before(start) {
				t.Errorf("the heals are %v", n.heals)
			}
		})
	})
}

// Volumes of a driver that is away for a day keep no other volume waiting: one that needs no driver is healed
// at once, and of those that need the driver each has its turn, whatever failed first.
func TestBesideADriverThatIsAway(t *testing.T) {
	n := acting(32)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for i := range 30 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, restages: true, err: fmt.Errorf("restage: %w", healer.ErrDriverAway)})
		}
		n.breaks("v30", fault{reason: healer.Disconnected, restages: true, err: syscall.EBUSY})
		time.Sleep(2 * time.Hour)
		start := time.Now()
		n.breaks("v31", fault{reason: healer.Disconnected})
		time.Sleep(time.Minute)
		if len(n.healsOf("v31", start)) == 0 {
			t.Error("a volume that needs no driver is not healed")
		}
		time.Sleep(9 * time.Hour)
		for i := range 31 {
			if id := fmt.Sprint("v", i); len(n.healsOf(id, start)) == 0 {
				t.Errorf("%s has no turn in nine hours", id)
			}
		}
	})
}

// A driver that comes back and goes again and again: each of the volumes that need it has its turns.
func TestDriverThatComesAndGoes(t *testing.T) {
	n := acting(31)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		n.breaks("v30", fault{reason: healer.Disconnected, restages: true, err: syscall.EBUSY})
		time.Sleep(2 * time.Hour)
		for i := range 30 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, restages: true, err: fmt.Errorf("restage: %w", healer.ErrDriverAway)})
		}
		time.Sleep(time.Minute)
		start := time.Now()
		for range 24 {
			n.happens <- node.SuperblockEvent{Driver: driver}
			time.Sleep(30 * time.Minute)
		}
		for i := range 31 {
			if id := fmt.Sprint("v", i); len(n.healsOf(id, start)) < 3 {
				t.Errorf("%s has %d turns in half a day", id, len(n.healsOf(id, start)))
			}
		}
	})
}

// deaf tells no changes of mounts.
type deaf struct{ *fakeNode }

func (deaf) Changes(context.Context) (<-chan struct{}, error) {
	return nil, errors.New("too many open files")
}

// Where no changes are told, searches find what was mounted; what a heal of the loop's own mounted is no change
// that may help, however that is found.
func TestChangesAreNotTold(t *testing.T) {
	for _, told := range []bool{true, false} {
		n := acting(1)
		n.healed = func(r healer.Report) (healer.Report, error) {
			n.lastMount++
			for i := range n.mounts {
				if n.mounts[i].Path == "/pods/0" {
					n.mounts[i] = facts.Mount{Path: n.mounts[i].Path, ID: n.lastMount, Dev: facts.Dev{Minor: uint32(n.lastMount)}}
				}
			}
			if told {
				n.changed()
			}
			return r, nil
		}
		synctest.Test(t, func(t *testing.T) {
			n.changes, n.happens = make(chan struct{}, 1), make(chan node.SuperblockEvent)
			var host Node = n
			if !told {
				host = deaf{n}
			}
			l := New(Config{Node: host, Engine: n, Events: n.SuperblockEvents, Publish: n.publish, Interval: time.Minute, Drivers: []string{driver}, Action: n.does})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() { defer close(ended); l.Run(ctx) }()
			time.Sleep(2 * time.Minute)
			n.add("staged", "/staging/late")
			n.do(func() { n.paths[len(n.paths)-1].Staging = true })
			if told {
				n.changed()
			}
			n.do(func() {
				n.faults["v0"] = &fault{reason: healer.Disconnected, err: fmt.Errorf("replace: %w", syscall.EBUSY)}
			})
			start := time.Now()
			time.Sleep(4 * time.Hour)
			if at := n.healsOf("v0", start); len(at) > 60 {
				t.Errorf("told: %t: %d heals in 4 hours", told, len(at))
			}
			if len(n.since(start)["staged"]) == 0 {
				t.Errorf("told: %t: a staged volume is never checked", told)
			}
			cancel()
			<-ended
		})
	}
}

// 30 volumes of a driver can never be healed. Another one breaks every three hours, and its heal always helps: it does not
// wait for all of these.
func TestAVolumeThatHealsHelp(t *testing.T) {
	n := acting(31)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for i := range 30 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, restages: true, err: fmt.Errorf("restage: %w", syscall.EBUSY)})
		}
		time.Sleep(9 * time.Hour) // each was tried
		for k := range 2 {
			start := time.Now()
			n.breaks("v30", fault{reason: healer.Disconnected, restages: true})
			time.Sleep(30 * time.Second)
			waited := time.Duration(-1)
			for range 12 * 60 {
				if at := n.healsOf("v30", start); len(at) > 0 {
					waited = at[0]
					break
				}
				time.Sleep(time.Minute)
			}
			if waited > 40*time.Minute || waited < 0 {
				t.Errorf("break %d: healed after %v", k, waited)
			}
			time.Sleep(3 * time.Hour)
		}
	})
}

// Volumes of a server get well by themselves and break again, one after the other, and no heal of these helps. Another one
// of it was tried once when that did not help. It would now.
func TestBesideVolumesThatAreWellAtTimes(t *testing.T) {
	n := acting(13)
	breaks := func(i int) {
		n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, server: "filer", err: syscall.EBUSY})
	}
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		breaks(12)
		time.Sleep(90 * time.Second)
		for i := range 12 {
			breaks(i)
		}
		time.Sleep(4 * time.Minute)
		n.do(func() { n.faults["v12"].err = nil })
		start := time.Now()
		for i := 0; time.Since(start) < 12*time.Hour; i = (i + 1) % 12 {
			n.do(func() { delete(n.faults, fmt.Sprint("v", i)) })
			time.Sleep(3 * time.Minute)
			breaks(i)
		}
		if len(n.healsOf("v12", start)) == 0 {
			t.Error("it has no turn in half a day")
		}
	})
}
