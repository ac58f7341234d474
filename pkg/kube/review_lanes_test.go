package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// flood calls with tokens that nobody knows, many times a second, from so many
// sources, for a minute. Others have their turn when all of that is used up that
// strangers may take.
func flood(t *testing.T, r *Reviewer, sources int, others func()) {
	t.Helper()
	const callsASecond = 300
	for second := range 60 {
		for i := range callsASecond {
			go func() {
				if r.Authorize(t.Context(), fmt.Sprint("source-", i%sources), fmt.Sprint("wrong-", second, "-", i), "heal") == nil {
					t.Error("a wrong token was let in")
				}
			}()
		}
		synctest.Wait()
		others()
		time.Sleep(time.Second)
	}
	time.Sleep(reviewTime)
}

func TestStrangersAreBounded(t *testing.T) {
	for name, tc := range map[string]struct{ sources, most int }{
		"from one source":   {1, crowdBurst + 66*crowdQPS},
		"from many sources": {100, strangerBurst + 66*strangerQPS},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeReviews()
				r := newTestReviewer(t, api, "")
				flood(t, r, tc.sources, func() {})
				if n := strings.Count(api.questions(), "token"); n > tc.most || n < tc.most/2 {
					t.Errorf("the API was asked %d times in a minute, want %d at most", n, tc.most)
				}
				if n := len(r.lanes.crowds); n > maxCrowds {
					t.Errorf("%d sources are remembered", n)
				}
			})
		})
	}
}

// Whoever was let in before the flood goes on through it, from the very machine
// that it comes from; and one who comes anew from elsewhere is let in.
func TestStrangersKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeReviews()
		r := newTestReviewer(t, api, "")
		if err := r.Authorize(t.Context(), "source-0", "good", "heal"); err != nil {
			t.Fatal(err)
		}
		tried := 0
		flood(t, r, 1, func() {
			if err := r.Authorize(t.Context(), "source-0", "good", "heal"); err != nil {
				t.Errorf("the controller: %v", err)
			}
			tried++
			fresh := fmt.Sprint("fresh-", tried)
			api.change(func() { api.tokens[fresh] = api.tokens["good"] })
			if err := r.Authorize(t.Context(), "elsewhere", fresh, "heal"); err != nil {
				t.Errorf("another one, of another machine: %v", err)
			}
		})
		if tried != 60 {
			t.Errorf("tried %d times", tried)
		}
	})
}

// Questions about strangers that get no answer take no place of others.
func TestStrangersThatHangKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeReviews()
		r := newTestReviewer(t, api, "")
		if err := r.Authorize(t.Context(), testSource, "good", "heal"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(keepYes)
		answer := make(chan struct{})
		api.change(func() { api.during = func(context.Context) { <-answer } })
		for i := range maxReviews {
			go func() { _ = r.Authorize(t.Context(), testSource, fmt.Sprint("wrong-", i), "heal") }()
		}
		synctest.Wait()
		api.change(func() { api.during = nil })
		if err := r.Authorize(t.Context(), testSource, "good", "heal"); err != nil {
			t.Error(err)
		}
		close(answer)
	})
}

func TestLetInIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanes()
		last := tokenKey{0xff}
		for i := range 2 * maxLetIn {
			l.remember(tokenKey{byte(i), byte(i >> 8)})
			time.Sleep(time.Millisecond)
		}
		l.remember(last)
		if n := len(l.letIn); n > maxLetIn {
			t.Errorf("%d tokens are remembered", n)
		}
		if !l.isKnown(last) || l.isKnown(tokenKey{}) {
			t.Error("it is not the last ones that are remembered")
		}
		time.Sleep(letInTime)
		if l.isKnown(last) {
			t.Error("it is remembered for ever")
		}
	})
}
