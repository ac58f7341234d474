package kube

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Who comes while a question is under way does not take its answer, which may be
// of before, and shares the next one with all who wait.
func TestSharedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, asked, broken := newShared[int](), 0, errors.New("broken")
		ask := func(context.Context) (int, error) { // an error is shared like any answer
			asked++
			n := asked
			time.Sleep(time.Second)
			if n == 2 {
				return n, broken
			}
			return n, nil
		}
		var all sync.WaitGroup
		all.Go(func() {
			if got, err := s.get(t.Context(), ask); got != 1 || err != nil {
				t.Errorf("the first: %d, %v", got, err)
			}
		})
		time.Sleep(time.Millisecond)
		for range 100 {
			all.Go(func() {
				if got, err := s.get(t.Context(), ask); got != 2 || !errors.Is(err, broken) {
					t.Errorf("those who came meanwhile: %d, %v", got, err)
				}
			})
		}
		all.Wait()
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

func TestSharedAnswerOfSomebodyWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared[int]()
		hang := func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }
		ctx, cancel := context.WithCancel(t.Context())
		var first sync.WaitGroup
		first.Go(func() {
			if _, err := s.get(ctx, hang); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, err := s.get(gone, hang); !errors.Is(err, context.Canceled) {
			t.Errorf("who waits for his turn may leave: %v", err)
		}
		var second sync.WaitGroup
		second.Go(func() {
			got, err := s.get(t.Context(), func(context.Context) (int, error) { return 7, nil })
			if got != 7 || err != nil {
				t.Errorf("got %d, %v", got, err)
			}
		})
		synctest.Wait()
		cancel()
		first.Wait()
		second.Wait()
	})
}
