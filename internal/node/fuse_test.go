package node

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// An abort that waited for its turn is revalidated after that.
func TestAbortFUSERevalidatesInItsTurn(t *testing.T) {
	n, _ := newNode(t)
	refused := errors.New("no longer wanted")
	var turn atomic.Bool
	aborted := make(chan error)
	done(t, n.probes.serialize(t.Context(), abortWalk, func() error {
		go func() {
			aborted <- n.AbortFUSE(t.Context(), facts.AbortPlan{}, func(context.Context) error {
				if !turn.Load() {
					t.Error("revalidated before its turn")
				}
				return refused
			})
		}()
		time.Sleep(20 * time.Millisecond) // it waits by then
		turn.Store(true)
		return nil
	}))
	if err := <-aborted; !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if s := n.cfg.Pool.Stats(); s.Started != 0 {
		t.Errorf("%+v", s)
	}
}
