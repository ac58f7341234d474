package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// TestShortCallSaysNothingOfTheAPI: a caller whose time is over while it waits for its turn, or
// for the answer, does not keep others from asking.
func TestShortCallSaysNothingOfTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, limit := newReader(nil), semaphore.NewWeighted(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 2 { // one of them waits for its turn
			all.Go(func() {
				err := r.send(ctx, request{}, limit, func() error { <-ctx.Done(); return errNoAPI })
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if err := r.send(t.Context(), request{}, limit, func() error { return nil }); err != nil {
			t.Errorf("the next caller: %v", err)
		}
	})
}

// TestWhatIsRememberedIsBounded: a tenant's pods may name any number of claims that do not
// exist. They push out each other, and not what was read of volumes.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	r := newReader(nil)
	pv, _ := kubetest.Volume("pv-1")
	r.keep(keyOf(volumeKind.Resource, "", pv.Name), pv, time.Now(), cacheTTL)
	for i := range 3 * maxCached {
		r.keep(keyOf(claimKind.Resource, "mallory", fmt.Sprint("claim-", i)), nil, time.Now(), absentTTL)
	}
	if n := len(r.objects); n > maxCached {
		t.Errorf("%d objects", n)
	}
	if names := r.volumesWith(kubetest.Handle); !slices.Equal(names, []string{pv.Name}) {
		t.Errorf("with the handle: %v", names)
	}
}

// TestLateAnswer: of two requests that are under way at once, the one that began first may be
// answered last, with what was true before.
func TestLateAnswer(t *testing.T) {
	r, key := newReader(nil), keyOf(volumeKind.Resource, "", "pv-1")
	pv, _ := kubetest.Volume("pv-1")
	began := time.Now()
	r.keep(key, nil, began.Add(time.Millisecond), absentTTL)
	r.keep(key, pv, began, cacheTTL)
	if _, _, known := last(r, volumeKind, "", pv.Name); !known || len(r.volumesWith(kubetest.Handle)) > 0 {
		t.Error("the older answer counts")
	}
}

// TestPodsThatWentAreForgotten: pods come and go for as long as the server runs.
func TestPodsThatWentAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		c, end := following(t, api)
		defer end()
		d, step := (&thisHost{t: t}).at(stagedMountPoint, false)
		before := 0
		for round := range 3 {
			pod := kubetest.Pod(fmt.Sprint("pod-", round), disk.claim)
			api.Put(pod)
			synctest.Wait()
			_, err := c.Enter(t.Context(), d, step)
			expect(t, "a step", err, "")
			api.Remove(pod)
			synctest.Wait()
			if known := len(c.reader.objects); round > 0 && known != before {
				t.Errorf("%d objects are kept, and %d before", known, before)
			}
			before = len(c.reader.objects)
		}
	})
}
