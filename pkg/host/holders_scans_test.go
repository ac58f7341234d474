package host

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/workerops"
)

// scanner answers for whatever is asked and remembers it.
type scanner struct {
	mu    sync.Mutex
	scans int
	err   error
	// wait holds every scan up until it closes; nil for not at all.
	wait chan struct{}
}

func (s *scanner) run(superblocks, devices []Dev) (workerops.HoldersAnswer, error) {
	s.mu.Lock()
	s.scans++
	err := s.err
	s.mu.Unlock()
	if s.wait != nil {
		<-s.wait
	}
	a := workerops.HoldersAnswer{Superblocks: map[workerops.Number]workerops.Held{}, Devices: map[workerops.Number]workerops.Held{}, Unknown: 1}
	for _, d := range superblocks {
		a.Superblocks[workerops.Number(d)] = workerops.Held{}
	}
	for _, d := range devices {
		a.Devices[workerops.Number(d)] = workerops.Held{}
	}
	a.Superblocks[workerops.Number{Major: 8, Minor: 99}] = workerops.Held{} // asked for on the way
	return a, err
}

func (s *scanner) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scans
}

// ask shares a scan by the scanner.
func (s *scanner) ask(ctx context.Context, scans *holderScans, at *probes, superblocks, devices []Dev) (workerops.HoldersAnswer, error) {
	return scans.share(ctx, at, superblocks, devices, func(context.Context) (workerops.HoldersAnswer, error) {
		return s.run(superblocks, devices)
	})
}

var one, two, extra = Dev{Major: 8, Minor: 1}, Dev{Major: 8, Minor: 2}, Dev{Major: 8, Minor: 99}

func TestAScanServesWhoComesSoonAfter(t *testing.T) {
	var s holderScans
	at := newProbes()
	var scan scanner
	ask := func(superblocks, devices []Dev, wantScans int) {
		t.Helper()
		if _, err := scan.ask(context.Background(), &s, at, superblocks, devices); err != nil || scan.count() != wantScans {
			t.Fatalf("%v, %d scans, want %d", err, scan.count(), wantScans)
		}
	}
	ask([]Dev{one}, nil, 1)
	ask([]Dev{one}, nil, 1)
	ask([]Dev{extra}, nil, 1)
	ask([]Dev{one}, []Dev{one}, 2) // its device was not asked for
	ask([]Dev{two}, nil, 3)
	s.started = time.Now().Add(-2 * scanMaxAge)
	ask([]Dev{two}, nil, 4)
}

func TestOneScanAtATime(t *testing.T) {
	var s holderScans
	at := newProbes()
	scan := scanner{wait: make(chan struct{})}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			if a, err := scan.ask(context.Background(), &s, at, []Dev{one}, nil); err != nil || a.Unknown != 1 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	eventually(t, "a scan runs", func() bool { return scan.count() == 1 })
	// A caller whose time is over does not wait.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := scan.ask(ctx, &s, at, []Dev{two}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(scan.wait)
	callers.Wait()
	if n := scan.count(); n != 1 {
		t.Errorf("%d scans", n)
	}
}

func TestAFailedScanIsNoAnswer(t *testing.T) {
	var s holderScans
	at := newProbes()
	scan := scanner{err: errors.New("no worker")}
	if _, err := scan.ask(context.Background(), &s, at, []Dev{one}, nil); !errors.Is(err, scan.err) {
		t.Errorf("%v", err)
	}
	failed := scan.err
	scan.err = nil
	if _, err := scan.ask(context.Background(), &s, at, []Dev{one}, nil); err != nil || scan.count() != 2 {
		t.Errorf("after %v: %v, %d scans", failed, err, scan.count())
	}
}
