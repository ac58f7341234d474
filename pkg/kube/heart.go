package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// heartShare is how often within the staleness the API is asked whether it is
// there: a watch that is silent looks the same as one that is cut.
const heartShare = 3

// heart knows when the API last answered a question from its own store.
type heart struct {
	mu   sync.Mutex
	last time.Time
	err  error
	// heard is closed with the first answer, or the first failure to get one; made
	// by whoever comes first.
	heard chan struct{}
}

func (h *heart) first() chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.heard == nil {
		h.heard = make(chan struct{})
	}
	return h.heard
}

// beat asks for this node until ctx ends.
func (c *Cluster) beat(ctx context.Context) {
	tick := time.NewTicker(c.cfg.Staleness / heartShare)
	defer tick.Stop()
	for {
		asked := time.Now()
		c.heart.note(asked, c.client.knows(ctx, c.cfg.Node))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// knows asks the API for a node, of which it sends only the metadata: every node
// asks all the time.
func (c *Client) knows(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_, err := c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).Get(ctx, node, metav1.GetOptions{})
	return c.explain(request{Verb: "get", Resource: "nodes", Name: node}, err)
}

// note takes the time of the question, not of the answer: it may be that old.
func (h *heart) note(asked time.Time, err error) {
	heard := h.first()
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-heard:
	default:
		close(heard)
	}
	if h.err = err; err == nil {
		h.last = asked
	}
}

func (h *heart) trouble(staleness time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch silent := time.Since(h.last); {
	case apierrors.IsNotFound(h.err):
		return fmt.Errorf("the cluster has no node of this name (--node-id): %w", h.err)
	case silent <= staleness:
		return nil
	case h.last.IsZero() && h.err == nil:
		return errors.New("the Kubernetes API has not answered yet")
	case h.last.IsZero():
		return fmt.Errorf("the Kubernetes API has not answered yet: %w", h.err)
	case h.err == nil:
		return fmt.Errorf("the Kubernetes API has not answered for %s (--api-staleness %s)", silent.Round(time.Second), staleness)
	default:
		return fmt.Errorf("the Kubernetes API has not answered for %s (--api-staleness %s): %w", silent.Round(time.Second), staleness, h.err)
	}
}

// failing says why the last question had no answer; nil: it had one.
func (h *heart) failing() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}
