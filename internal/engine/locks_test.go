package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// holdLooks makes every look wait until release.
func holdLooks(b *fixture) (entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}, 100), make(chan struct{})
	b.onLook = func(hostQuestion) error {
		select {
		case in <- struct{}{}:
		default: // not read as often
		}
		<-out
		return nil
	}
	return in, sync.OnceFunc(func() { close(out) })
}

// isBusy makes a call and tells whether it was turned away.
func isBusy(t *testing.T, b *fixture, v healer.Volume) bool {
	t.Helper()
	_, err := b.engine.Heal(context.Background(), v)
	if err != nil && healer.KindOf(err) != healer.KindBusy {
		t.Fatalf("%s: %v", v.Path, err)
	}
	return err != nil
}

func TestOneCallForEachVolume(t *testing.T) {
	b := newFixture(t)
	b.publish(podB)
	entered, release := holdLooks(b)
	defer release()
	first := make(chan error, 1)
	go func() {
		_, err := b.engine.Heal(context.Background(), volume)
		first <- err
	}()
	<-entered
	for name, v := range map[string]healer.Volume{
		"the same":                   volume,
		"by the path alone":          {ID: "another", Path: podA},
		"by another spelling":        {ID: volID, Path: "/link/" + strings.TrimPrefix(podA, "/k/")},
		"by its staging path":        {ID: volID, Path: podB, StagingPath: staging},
		"staging as the mount point": {ID: volID, Path: staging},
	} {
		_, err := b.engine.Heal(context.Background(), v)
		if healer.KindOf(err) != healer.KindBusy || !strings.Contains(err.Error(), "running since 20") {
			t.Errorf("%s: %v", name, err)
		}
	}
	release()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if isBusy(t, b, volume) {
		t.Error("busy after the call ended")
	}
}

func TestSameVolumeByDriverAndID(t *testing.T) {
	b := newFixture(t, func(c *Config) { c.Drivers = nil })
	b.publish(podB)
	occupy(b, volumeKey(driver, volID))
	if !isBusy(t, b, healer.Volume{ID: volID, Path: podB}) {
		t.Error("two calls for one volume by two paths")
	}
	// A handle says little without its driver.
	l := directory(volID)
	l.VolData.DriverName = "other.example.com"
	b.files[podB] = l
	if isBusy(t, b, healer.Volume{ID: volID, Path: podB}) {
		t.Error("another driver's volume of that name is busy")
	}
	// What a refused call held is free again.
	if _, err := b.engine.locks.lock(false, key{path: podB}); err != nil {
		t.Error(err)
	}
}

func TestManyCallersOnOneVolume(t *testing.T) {
	b := newFixture(t)
	entered, release := holdLooks(b)
	var callers sync.WaitGroup
	var busy, answered atomic.Int64
	for range 256 {
		callers.Go(func() {
			switch _, err := b.engine.Heal(context.Background(), volume); {
			case err == nil:
				answered.Add(1)
			case healer.KindOf(err) == healer.KindBusy:
				busy.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	<-entered
	eventually(t, "all but one are turned away", func() bool { return busy.Load() == 255 })
	release()
	callers.Wait()
	if answered.Load() != 1 {
		t.Errorf("%d answered, %d busy", answered.Load(), busy.Load())
	}
}

func TestVolumeStaysBusyWhenItsCallerLeaves(t *testing.T) {
	b := newFixture(t)
	entered, release := holdLooks(b)
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan error, 1)
	go func() {
		_, err := b.engine.Heal(ctx, volume)
		first <- err
	}()
	<-entered
	cancel()
	if !isBusy(t, b, volume) {
		t.Fatal("the volume is free while work on it goes on")
	}
	release()
	if err := <-first; err != nil {
		t.Errorf("the work was cut off: %v", err)
	}
	if isBusy(t, b, volume) {
		t.Error("the volume is busy after the work ended")
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Errorf("never: %s", what)
}

// stuckError is what a call of a worker that cannot be ended gives.
type stuckError chan struct{}

func (stuckError) Error() string            { return "cannot be ended" }
func (s stuckError) Ended() <-chan struct{} { return s }
func stuckAt(op string, s stuckError) error { return fmt.Errorf("%s: %w", op, s) }

func TestVolumeStaysBusyWhileAWorkerIsStuck(t *testing.T) {
	t.Run("in a probe", func(t *testing.T) {
		b := newFixture(t)
		stuck := make(stuckError)
		b.onLook = func(hostQuestion) error { return stuckAt("look", stuck) }
		if _, err := b.engine.Heal(context.Background(), volume); healer.KindOf(err) != healer.KindUnknown {
			t.Fatal(err)
		}
		b.onLook = nil
		if !isBusy(t, b, volume) {
			t.Fatal("free")
		}
		close(stuck)
		eventually(t, "free", func() bool { return !isBusy(t, b, volume) })
	})
	t.Run("in a step", func(t *testing.T) {
		b := newFixture(t)
		b.healthy()
		b.fall(podA, healer.NotMounted)
		stuck, ran := make(stuckError), false
		b.offer("rebind", podA, healer.Rebind, func() error { return stuckAt("mount point", stuck) })
		b.offer("replace", podA, healer.Replace, func() error { ran = true; return nil })
		// It may still act, so nothing else may.
		if r := b.heal(volume); ran || len(r.Steps) != 1 || r.Steps[0].Step != "rebind" || r.Verdict() != healer.Abnormal {
			t.Errorf("%s after %q, the next step ran: %v", r.Verdict(), outcomes(r), ran)
		}
		if !isBusy(t, b, volume) {
			t.Fatal("free while the worker is at it")
		}
		close(stuck)
		eventually(t, "free", func() bool { return !isBusy(t, b, volume) })
	})
	t.Run("in a step before a provider panics", func(t *testing.T) {
		stuck, steps, panics := make(stuckError), 0, 0
		bad := panicker{"bad", func() {
			if steps > panics {
				panics++
				panic("bug")
			}
		}}
		b := newFixture(t, func(c *Config) { c.Providers = append(c.Providers, bad) })
		b.healthy()
		b.fall(podA, healer.NotMounted)
		b.offer("rebind", podA, healer.Rebind, func() error { steps++; return stuckAt("mount point", stuck) })
		if _, err := b.engine.Heal(context.Background(), volume); steps != 1 || healer.KindOf(err) != healer.KindUnknown {
			t.Fatalf("%d steps ran: %v", steps, err)
		}
		b.recover(podA)
		if !isBusy(t, b, volume) {
			t.Fatal("free while the worker is at it")
		}
		close(stuck)
		eventually(t, "free", func() bool { return !isBusy(t, b, volume) })
	})
}

func TestCloseWaitsAndRefuses(t *testing.T) {
	b := newFixture(t)
	entered, release := holdLooks(b)
	defer release()
	first := make(chan error, 1)
	go func() {
		_, err := b.engine.Heal(context.Background(), volume)
		first <- err
	}()
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := b.engine.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close came back with %v while work went on", err)
	}
	if _, err := b.engine.Heal(context.Background(), healer.Volume{ID: "w", Path: podB}); !errors.Is(err, healer.ErrShuttingDown) {
		t.Errorf("a new call: %v", err)
	}
	release()
	if err := b.engine.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-first; err != nil {
		t.Errorf("Close cut off a running call: %v", err)
	}
}

// Any number of checks run at once, and none blocks another.
func TestChecksShareAVolume(t *testing.T) {
	b := newFixture(t)
	entered, release := holdLooks(b)
	defer release()
	checks := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := b.engine.Check(context.Background(), volume)
			checks <- err
		}()
		<-entered
	}
	release()
	for range 2 {
		if err := <-checks; err != nil {
			t.Error(err)
		}
	}
	if len(b.engine.locks.calls) != 0 {
		t.Error("checks that ended are in the table")
	}
}

// A heal does not wait for a check, which then fails; no check begins during a heal.
func TestHealPreemptsACheck(t *testing.T) {
	b := newFixture(t)
	entered, release := holdLooks(b)
	defer release()
	check, heal := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := b.engine.Check(context.Background(), volume)
		check <- err
	}()
	<-entered
	go func() {
		_, err := b.engine.Heal(context.Background(), volume)
		heal <- err
	}()
	<-entered
	if _, err := b.engine.Check(context.Background(), volume); healer.KindOf(err) != healer.KindBusy {
		t.Errorf("a check during a heal: %v", err)
	}
	release()
	if err := <-heal; err != nil {
		t.Error(err)
	}
	if err := <-check; healer.KindOf(err) != healer.KindBusy {
		t.Errorf("the check before: %v", err)
	}
	if b.notes.saves != 1 {
		t.Errorf("%d records were saved, the heal's is one", b.notes.saves)
	}
}

// While a check saves its record, no heal begins, other checks go on, and none of them
// saves beside it.
func TestCheckThatSaves(t *testing.T) {
	table, at := &volumeLocks{}, volumeKey(driver, volID)
	enter := func(checks bool) (*volumeLock, error) { return table.lock(checks, at) }
	first, _ := enter(true)
	second, _ := enter(true)
	saved := 0
	err := first.alone(func() {
		saved++
		if _, err := enter(false); healer.KindOf(err) != healer.KindBusy {
			t.Errorf("a heal meanwhile: %v", err)
		}
		third, err := enter(true)
		if err != nil {
			t.Errorf("a check meanwhile: %v", err)
		}
		third.unlock(nil)
		if err := second.alone(func() { saved++ }); err != nil {
			t.Errorf("another check that would save: %v", err)
		}
	})
	if err != nil || saved != 1 {
		t.Errorf("saved %d times, %v", saved, err)
	}
	heal, err := enter(false)
	if err != nil {
		t.Fatalf("a heal afterwards: %v", err)
	}
	for _, check := range []*volumeLock{first, second} {
		if err := check.alone(func() { t.Error("a preempted check saved") }); healer.KindOf(err) != healer.KindBusy {
			t.Errorf("got %v", err)
		}
		check.unlock(nil)
	}
	heal.unlock(nil)
	if len(table.calls) != 0 {
		t.Errorf("left are %v", table.calls)
	}
}

// A check with a stuck worker does not keep the volume busy: the host probes no storage
// at which a worker is stuck. The table must not grow by it, however many paths are named.
func TestCheckThatIsStuck(t *testing.T) {
	b := newFixture(t)
	stuck := make(stuckError)
	defer close(stuck)
	b.onLook = func(hostQuestion) error { return stuckAt("look", stuck) }
	for range 3 {
		if _, err := b.engine.Check(context.Background(), volume); err == nil || healer.KindOf(err) == healer.KindBusy {
			t.Errorf("got %v", err)
		}
	}
	if len(b.engine.locks.calls) != 0 {
		t.Errorf("left are %v", b.engine.locks.calls)
	}
}

// A heal that comes while a check saves its record waits for that, and is not turned away.
func TestHealWaitsForACheckThatSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a heal waits for a second
		table := &volumeLocks{}
		k := volumeKey(driver, volID)
		check, err := table.lock(true, k)
		if err != nil {
			t.Fatal(err)
		}
		saving, saved := make(chan struct{}), make(chan struct{})
		ended := make(chan error, 1)
		go func() { ended <- check.alone(func() { close(saving); <-saved }) }()
		<-saving
		began := make(chan error, 1)
		go func() {
			_, err := table.lock(false, k)
			began <- err
		}()
		synctest.Wait()
		select {
		case err := <-began:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		close(saved)
		if err := errors.Join(<-ended, <-began); err != nil {
			t.Error(err)
		}
		if err := check.current(); healer.KindOf(err) != healer.KindBusy {
			t.Errorf("the check counts: %v", err)
		}
		other, err := table.lock(true, volumeKey(driver, "other"))
		if err != nil {
			t.Fatal(err)
		}
		if err := other.alone(func() {
			if _, err := table.lock(false, volumeKey(driver, "other")); healer.KindOf(err) != healer.KindBusy {
				t.Errorf("a check that never ends saving: %v", err)
			}
		}); err != nil {
			t.Error(err)
		}
	})
}
