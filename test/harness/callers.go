package harness

import (
	"sync"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// Answer is what one call gave.
type Answer struct {
	*healerpb.NodeHealerResponse
	Err error
}

// Callers is a number of callers that ask for volumes continuously.
type Callers struct {
	leave func()
	gone  sync.WaitGroup

	mu      sync.Mutex
	answers []Answer
}

// AskContinuously has callers ask for volumes, one after the other, until they are
// stopped.
func (n *Node) AskContinuously(callers int, volumes ...*healerpb.NodeHealerRequest) *Callers {
	enough := make(chan struct{})
	c := &Callers{leave: sync.OnceFunc(func() { close(enough) })}
	n.T.Cleanup(func() { c.Stop() })
	for i := range callers {
		c.gone.Go(func() {
			for next := i; ; next++ {
				select {
				case <-enough:
					return
				default:
				}
				a, err := n.Call(volumes[next%len(volumes)])
				c.mu.Lock()
				c.answers = append(c.answers, Answer{a, err})
				c.mu.Unlock()
			}
		})
	}
	return c
}

// Answers is the number of answers so far.
func (c *Callers) Answers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.answers)
}

// Stop waits for the callers' last answers and returns all of them.
func (c *Callers) Stop() []Answer {
	c.leave()
	c.gone.Wait()
	return c.answers
}
