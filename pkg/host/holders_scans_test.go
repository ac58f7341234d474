package host

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/workerops"
)

// scanner answers for whatever is asked and remembers it.
type scanner struct {
	mu    sync.Mutex
	scans [][]Dev
	err   error
	// wait holds every scan up until it closes; nil for not at all.
	wait chan struct{}
}

func (s *scanner) run(_ context.Context, superblocks, devices []Dev) (workerops.HoldersAnswer, error) {
	s.mu.Lock()
	all := slices.Concat(superblocks, devices)
	slices.SortFunc(all, func(a, b Dev) int { return int(a.Minor) - int(b.Minor) })
	s.scans = append(s.scans, all)
	err := s.err
	s.mu.Unlock()
	if s.wait != nil {
		<-s.wait
	}
	a := workerops.HoldersAnswer{Superblocks: map[workerops.Number]workerops.Held{}, Unknown: len(all)}
	for _, d := range superblocks {
		a.Superblocks[workerops.Number(d)] = workerops.Held{}
	}
	a.Superblocks[workerops.Number{Major: 8, Minor: 99}] = workerops.Held{} // asked for on the way
	return a, err
}

func (s *scanner) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.scans)
}

var one, two, extra = Dev{Major: 8, Minor: 1}, Dev{Major: 8, Minor: 2}, Dev{Major: 8, Minor: 99}

func TestAScanServesWhoComesSoonAfter(t *testing.T) {
	var s holderScans
	var at probes
	var scan scanner
	ask := func(superblocks, devices []Dev, wantScans int) {
		t.Helper()
		if _, err := s.share(context.Background(), &at, superblocks, devices, scan.run); err != nil || scan.count() != wantScans {
			t.Fatalf("%v, %d scans, want %d", err, scan.count(), wantScans)
		}
	}
	ask([]Dev{one}, nil, 1)
	ask([]Dev{one}, nil, 1)
	ask([]Dev{extra}, nil, 1)
	ask([]Dev{one}, []Dev{one}, 2) // its device was not asked for
	ask([]Dev{two}, nil, 3)
	ask([]Dev{one, two}, []Dev{one}, 3) // the third asked for what the second told
	if got := scan.scans[2]; !slices.Equal(got, []Dev{one, one, two, extra}) {
		t.Errorf("the third asked for %v", got)
	}
	s.last.started = time.Now().Add(-2 * holdersKeep)
	ask([]Dev{two}, nil, 4)
	if got := scan.scans[3]; !slices.Equal(got, []Dev{two}) {
		t.Errorf("an old scan is asked for again: %v", got)
	}
}

func TestOneScanAtATime(t *testing.T) {
	var s holderScans
	var at probes
	scan := scanner{wait: make(chan struct{})}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			if a, err := s.share(context.Background(), &at, []Dev{one}, nil, scan.run); err != nil || a.Unknown != 1 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	eventually(t, "a scan runs", func() bool { return scan.count() == 1 })
	// Who cannot wait need not.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.share(ctx, &at, []Dev{two}, nil, scan.run); !errors.Is(err, context.Canceled) {
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
	var at probes
	scan := scanner{err: errors.New("no worker")}
	if _, err := s.share(context.Background(), &at, []Dev{one}, nil, scan.run); !errors.Is(err, scan.err) {
		t.Errorf("%v", err)
	}
	failed := scan.err
	scan.err = nil
	if _, err := s.share(context.Background(), &at, []Dev{one}, nil, scan.run); err != nil || scan.count() != 2 {
		t.Errorf("after %v: %v, %d scans", failed, err, scan.count())
	}
}

// Callers in turn do not have scans ask for ever more.
func TestAScanAsksForAFewOthers(t *testing.T) {
	var s holderScans
	var at probes
	var scan scanner
	for i := range uint32(3 * maxScanned) {
		if _, err := s.share(context.Background(), &at, []Dev{{Minor: i}}, nil, scan.run); err != nil {
			t.Fatal(err)
		}
		if n := len(s.last.superblocks); n > maxScanned {
			t.Fatalf("%d are asked for", n)
		}
	}
}
