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

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// TestRequestsAreShared: a caller that comes while a request is under way does not take
// its result, which may be out of date, and shares the next one with all that wait.
func TestRequestsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, asked, broken := newReader(nil), 0, errors.New("broken")
		request := func(context.Context) (any, error) { // an error is shared like any answer
			asked++
			n := asked
			time.Sleep(time.Second)
			if n == 2 {
				return n, apierrors.NewBadRequest(broken.Error())
			}
			return n, nil
		}
		var all sync.WaitGroup
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if _, err := r.share(ctx, "x", r.gets, request); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first caller, which left: %v", err)
			}
		})
		time.Sleep(2 * time.Millisecond)
		for range 100 {
			all.Go(func() {
				if got, err := r.share(t.Context(), "x", r.gets, request); got != 2 || !apierrors.IsBadRequest(err) {
					t.Errorf("the callers that came meanwhile: %d, %v", got, err)
				}
			})
		}
		all.Wait()
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// TestWhatIsRememberedIsBounded: a tenant's pods may name any number of claims that do not
// exist. They push out each other, and not what was read of volumes.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	r := newReader(nil)
	pv, _ := kubetest.Volume("pv-1")
	r.keep(keyOf(volumeKind.resource, "", pv.Name), pv, cacheTTL)
	for i := range 3 * maxCached {
		r.keep(keyOf(claimKind.resource, "mallory", fmt.Sprint("claim-", i)), nil, absentTTL)
	}
	if n := len(r.objects); n > maxCached {
		t.Errorf("%d objects", n)
	}
	if names := r.volumesWith(kubetest.Handle); !slices.Equal(names, []string{pv.Name}) {
		t.Errorf("with the handle: %v", names)
	}
}
