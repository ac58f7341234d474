package nodeserver

import "sync"

// calls counts the running calls of the engine. A WaitGroup would not do: it must not
// be waited for while it can still grow from zero.
type calls struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{}
}

// enter counts a call, or returns false when the server is draining.
func (c *calls) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.n++
	return true
}

func (c *calls) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.closed && c.n == 0 {
		close(c.idle)
	}
}

// drain refuses calls from now on. The channel closes when the last one has left.
func (c *calls) drain() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.idle = make(chan struct{})
		if c.n == 0 {
			close(c.idle)
		}
	}
	return c.idle
}

func (c *calls) draining() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *calls) running() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}
