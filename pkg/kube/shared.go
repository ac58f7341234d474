package kube

import (
	"context"
	"time"
)

// shared lets those who need the same answer of the API ask once. Nobody gets an
// answer to a question that was put before his own need arose.
type shared[T any] struct {
	turn chan struct{} // holds one while somebody asks
	put  time.Time
	// value and err are the answer to the question put then.
	value T
	err   error
}

func newShared[T any]() *shared[T] { return &shared[T]{turn: make(chan struct{}, 1)} }

func (s *shared[T]) get(ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	needed := time.Now()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
	if s.put.After(needed) {
		return s.value, s.err
	}
	put := time.Now()
	value, err := ask(ctx)
	if ctx.Err() != nil {
		return value, err // he who asked has gone, which is no answer for others
	}
	s.put, s.value, s.err = put, value, err
	return value, err
}
