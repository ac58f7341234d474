package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

const (
	// healthRefresh is how often lastChecked is renewed while nothing changes.
	// Each write goes to everybody who watches claims, so it is rare; the
	// controller's clean-up must have more patience than this.
	healthRefresh = time.Hour
	// healthJitter spreads a node's claims over the time: a part of it.
	healthJitter = 0.2
	// healthQPS and healthBurst hold for a whole node.
	healthQPS   = 5
	healthBurst = 10
)

// volumeHealth keeps the annotations of claims. However often a volume is
// checked, only its last state waits, and one that has not changed costs the
// API nothing until it is due.
type volumeHealth struct {
	claims claims
	cfg    ReporterConfig
	pace   flowcontrol.RateLimiter
	// wake has room for one: there is something to do.
	wake chan struct{}
	// said is the last error that was logged, refused what the API says of late.
	said    string
	refused refusals

	mu      sync.Mutex
	waiting map[volumeKey]seen
	stands  map[volumeKey]written
}

// written is what stands on a volume's claim.
type written struct {
	// claim is empty when nobody knows what stands there.
	claim types.UID
	state string
	since string
	// due is when it is written again, even if it is the same.
	due time.Time
	// failed is why the API took none; empty: it did.
	failed string
}

func (w written) covers(s seen) bool { return w.state == s.state && s.at.Before(w.due) }

func newVolumeHealth(c *Client, cfg ReporterConfig) *volumeHealth {
	return &volumeHealth{
		claims: claims{c}, cfg: cfg,
		pace:    flowcontrol.NewTokenBucketRateLimiter(healthQPS, healthBurst),
		wake:    make(chan struct{}, 1),
		waiting: map[volumeKey]seen{},
		stands:  map[volumeKey]written{},
	}
}

// offer takes a state, which is written if it changes what stands there.
func (h *volumeHealth) offer(s seen) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiting, s.key)
	if h.stands[s.key].covers(s) || len(h.waiting) >= maxVolumes {
		return
	}
	h.waiting[s.key] = s
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// take gives one that waits, and what stands on its claim, which is not known
// from then on until somebody sets it.
func (h *volumeHealth) take() (s seen, before written, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, one := range h.waiting {
		delete(h.waiting, key)
		if before = h.stands[key]; !before.covers(one) {
			delete(h.stands, key)
			return one, before, true
		}
	}
	return seen{}, written{}, false
}

// putBack has one wait again, unless a newer one does.
func (h *volumeHealth) putBack(s seen) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, newer := h.waiting[s.key]; !newer {
		h.waiting[s.key] = s
	}
}

func (h *volumeHealth) set(key volumeKey, w written) {
	h.mu.Lock()
	defer h.mu.Unlock()
	makeRoom(h.stands, maxVolumes, func(w written) time.Time { return w.due })
	h.stands[key] = w
}

// run is the only one that writes.
func (h *volumeHealth) run(ctx context.Context) {
	backoff := soon
	for ctx.Err() == nil {
		s, before, found := h.take()
		if !found {
			select {
			case <-ctx.Done():
			case <-h.wake:
			}
			continue
		}
		claim, node, known := h.claimOf(ctx, s)
		if !known {
			continue // the next check asks again
		}
		err := h.write(ctx, s, before, claim, node)
		switch {
		case err == nil:
			backoff, h.said = soon, ""
			h.refused.forget()
		case errors.Is(err, errNoClaim) || h.refused.final(err):
			// Not again at every check.
			h.set(s.key, written{state: s.state, due: s.at.Add(refresh()), failed: err.Error()})
			if err.Error() != before.failed {
				h.log(err)
			}
		case ctx.Err() == nil:
			h.putBack(s)
			h.log(err)
			pause(ctx, backoff.Step())
		}
	}
}

func (h *volumeHealth) log(err error) {
	if errors.Is(err, errNoClaim) || err.Error() == h.said {
		return
	}
	h.said = err.Error()
	klog.ErrorS(err, "Cannot write the health of a volume to its claim")
}

// claimOf gives the claim that a volume's health is written to, and for whom.
func (h *volumeHealth) claimOf(ctx context.Context, s seen) (claim corev1.ObjectReference, node types.UID, known bool) {
	subjects, found := h.cfg.Find(ctx, s.key.driver, s.key.id, s.pods)
	node, known = h.cfg.NodeUID()
	if !found || !known || subjects.Claim == nil {
		return corev1.ObjectReference{}, "", false
	}
	return *subjects.Claim, node, true
}

// write reads first what stands on the claim, if that is not known: another
// process on this node may have written it, and since when.
func (h *volumeHealth) write(ctx context.Context, s seen, before written, claim corev1.ObjectReference, node types.UID) error {
	if err := h.pace.Wait(ctx); err != nil {
		return err
	}
	if before.claim != claim.UID {
		there, err := h.claims.health(ctx, claim, node)
		if err != nil {
			return err
		}
		before = there.written(claim.UID)
		if before.covers(s) {
			h.set(s.key, before)
			return nil
		}
	}
	now := written{claim: claim.UID, state: s.state, since: stamp(s.at), due: s.at.Add(refresh())}
	if before.state == now.state && before.since != "" {
		now.since = before.since
	}
	err := h.claims.setHealth(ctx, claim, node, healthState{
		State: now.state, LastChecked: stamp(s.at), Since: now.since, Node: h.cfg.Node,
	})
	if err != nil {
		return err
	}
	h.set(s.key, now)
	return nil
}

// written tells when what is on the claim is due.
func (s healthState) written(claim types.UID) written {
	w := written{claim: claim, state: s.State, since: s.Since}
	checked, err := time.Parse(time.RFC3339, s.LastChecked)
	if err == nil && checked.Before(time.Now()) {
		w.due = checked.Add(refresh())
	}
	return w
}

func refresh() time.Duration {
	return time.Duration(float64(healthRefresh) * (1 + healthJitter*(rand.Float64()-0.5))) //nolint:gosec // no secret
}
