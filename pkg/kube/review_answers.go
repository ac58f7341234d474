package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"
)

// answers remembers what was answered to a question, and asks each question
// once however many wait for the answer. The zero value is ready.
type answers[K comparable, V any] struct {
	mu    sync.Mutex
	known map[K]answer[V]
	asked map[K]*question[V]
}

type answer[V any] struct {
	value V
	err   error
	until time.Time
}

type question[V any] struct {
	answered chan struct{}
	value    V
	err      error
}

var (
	errUnanswered = errors.New("internal error: the question about the caller was not answered")
	errGone       = errors.New("the caller did not wait for the Kubernetes API")
)

// get gives the answer, an error perhaps. ask says for how long it holds, which
// may be not at all.
func (a *answers[K, V]) get(ctx context.Context, key K, ask func(context.Context) (V, time.Duration, error)) (V, error) {
	a.mu.Lock()
	if known, ok := a.known[key]; ok && time.Now().Before(known.until) {
		a.mu.Unlock()
		return known.value, known.err
	}
	q, under := a.asked[key]
	if !under {
		q = &question[V]{answered: make(chan struct{}), err: errUnanswered}
		if a.asked == nil {
			a.asked = map[K]*question[V]{}
		}
		a.asked[key] = q
	}
	a.mu.Unlock()
	if !under {
		a.put(ctx, key, q, ask)
		return q.value, q.err
	}
	select {
	case <-q.answered:
		return q.value, q.err
	case <-ctx.Done():
		var none V
		return none, errGone
	}
}

// put asks. Whoever waits gets an answer even if it panics, and that is no.
func (a *answers[K, V]) put(ctx context.Context, key K, q *question[V], ask func(context.Context) (V, time.Duration, error)) {
	var keep time.Duration
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.asked, key)
		if keep > 0 {
			a.remember(key, answer[V]{q.value, q.err, time.Now().Add(keep)})
		}
		close(q.answered)
	}()
	q.value, keep, q.err = ask(ctx)
}

// remember makes room by what ends first, which is what was refused.
func (a *answers[K, V]) remember(key K, now answer[V]) {
	if a.known == nil {
		a.known = map[K]answer[V]{}
	}
	if _, again := a.known[key]; !again {
		makeRoom(a.known, maxAnswers, func(old answer[V]) time.Time { return old.until })
	}
	a.known[key] = now
}

// keepUntil is how long a token that the API took is taken again: no longer than
// the token says of itself, if it is a JWT (RFC 7519, section 4.1.4).
func keepUntil(token string, now time.Time) time.Duration {
	var claims struct {
		Ends *float64 `json:"exp"`
	}
	if !readClaims(token, &claims) || claims.Ends == nil {
		return keepYes
	}
	return min(keepYes, time.Unix(int64(*claims.Ends), 0).Sub(now))
}

// readClaims reads what a JWT says of itself. Nobody has checked its signature.
func readClaims(token string, claims any) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	return err == nil && json.Unmarshal(payload, claims) == nil
}
