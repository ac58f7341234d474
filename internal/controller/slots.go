package controller

import "sync"

// slots counts what is going on for each key, up to a limit.
type slots struct {
	limit int

	mu   sync.Mutex
	used map[string]int
}

func newSlots(limit int) *slots { return &slots{limit: limit, used: map[string]int{}} }

// take returns false when the key has no slot left. Each slot has to be given back.
func (s *slots) take(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[key] >= s.limit {
		return false
	}
	s.used[key]++
	return true
}

func (s *slots) giveBack(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[key]--; s.used[key] == 0 {
		delete(s.used, key)
	}
}
