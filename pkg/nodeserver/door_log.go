package nodeserver

import (
	"sync"
	"time"
)

// rationEvery is how often a line may come that anybody who connects can cause.
const rationEvery = 10 * time.Second

// rationed keeps what strangers do from filling the log.
type rationed struct {
	mu   sync.Mutex
	next time.Time
	held int
}

// due counts an event, and reports whether it may have a line, with the number
// of events that had none since the last.
func (r *rationed) due() (more int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Before(r.next) {
		r.held++
		return 0, false
	}
	r.next = now.Add(rationEvery)
	more, r.held = r.held, 0
	return more, true
}
