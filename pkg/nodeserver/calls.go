package nodeserver

import "sync"

// calls are the running calls of the engine.
type calls struct {
	mu       sync.Mutex
	draining bool
	// running only grows before draining is set, and is waited for after that: a WaitGroup must
	// not be waited for while it can still grow from zero.
	running sync.WaitGroup
}

// enter counts a call, or returns false when the server is draining.
func (c *calls) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return false
	}
	c.running.Add(1)
	return true
}

// drain refuses calls from now on. The channel closes when the last one has left.
func (c *calls) drain() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		c.running.Wait()
	}()
	return idle
}

func (c *calls) isDraining() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.draining
}
