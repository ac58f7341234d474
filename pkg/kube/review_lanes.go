package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

// What strangers may have asked of the API. A stranger is a token that was not
// let in lately: anybody who reaches the port can make up as many as he likes.
const (
	// strangerQPS and strangerBurst hold for all of them. One who is let in
	// takes two questions.
	strangerQPS   = 20
	strangerBurst = 50
	// crowdQPS and crowdBurst hold for those from one source, so that nobody
	// takes alone what there is for all.
	crowdQPS   = 5
	crowdBurst = 25
	// maxCrowds bounds what is remembered of sources. One that is forgotten
	// begins anew; what holds for all holds for it too.
	maxCrowds = 256
	// letInTime is how long a token that was let in is no stranger's.
	letInTime = time.Hour
	// maxLetIn bounds what is remembered of these. Only the cluster's roles make
	// somebody one.
	maxLetIn = 256
)

var (
	errManyHere = errors.New("too many new tokens came from this address lately, try again")
	errMany     = errors.New("too many callers are waiting for the Kubernetes API, try again")
)

// lanes are the ways to the API. Who was let in lately has one of its own, and
// never waits behind strangers. Make them with newLanes.
type lanes struct {
	// known and strangers have a place for each question under way.
	known, strangers chan struct{}
	pace             flowcontrol.RateLimiter

	mu     sync.Mutex
	crowds map[string]*crowd
	letIn  map[tokenKey]time.Time
}

// crowd is all strangers from one source.
type crowd struct {
	pace flowcontrol.PassiveRateLimiter
	last time.Time
}

func newLanes() *lanes {
	return &lanes{
		known:     make(chan struct{}, maxReviews),
		strangers: make(chan struct{}, maxReviews),
		pace:      flowcontrol.NewTokenBucketRateLimiter(strangerQPS, strangerBurst),
		crowds:    map[string]*crowd{},
		letIn:     map[tokenKey]time.Time{},
	}
}

// enter waits for the turn to put one question, if there is one before ctx ends.
// leave gives it back.
func (l *lanes) enter(ctx context.Context, who asker) (leave func(), err error) {
	lane := l.known
	if !l.isKnown(who.key) {
		lane = l.strangers
		// Not waited for: a flood would only take the places of those who are.
		if !l.paceOf(who.source).TryAccept() {
			return nil, errManyHere
		}
		if l.pace.Wait(ctx) != nil {
			return nil, errMany
		}
	}
	select {
	case lane <- struct{}{}:
		return func() { <-lane }, nil
	case <-ctx.Done():
		return nil, errMany
	}
}

func (l *lanes) isKnown(key tokenKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, found := l.letIn[key]
	return found && time.Since(at) < letInTime
}

// remember takes note of a token that was let in.
func (l *lanes) remember(key tokenKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, found := l.letIn[key]; !found {
		makeRoom(l.letIn, maxLetIn, func(at time.Time) time.Time { return at })
	}
	l.letIn[key] = time.Now()
}

func (l *lanes) paceOf(source string) flowcontrol.PassiveRateLimiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.crowds[source]
	if c == nil {
		makeRoom(l.crowds, maxCrowds, func(c *crowd) time.Time { return c.last })
		c = &crowd{pace: flowcontrol.NewTokenBucketPassiveRateLimiter(crowdQPS, crowdBurst)}
		l.crowds[source] = c
	}
	c.last = time.Now()
	return c.pace
}
