package host

import "sync"

// kept remembers what was learned, of at most maxKept things. For one more it
// forgets any other, which is then learned again. The zero value is ready.
type kept[K comparable, V any] struct {
	mu    sync.Mutex
	known map[K]V
}

// maxKept is many times the volumes of a node.
const maxKept = 4096

// of gives the zero value when nothing is known.
func (k *kept[K, V]) of(key K) (V, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, known := k.known[key]
	return v, known
}

func (k *kept[K, V]) keep(key K, v V) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		k.known = map[K]V{}
	}
	if _, again := k.known[key]; !again && len(k.known) >= maxKept {
		for other := range k.known {
			delete(k.known, other)
			break
		}
	}
	k.known[key] = v
}

func (k *kept[K, V]) forget(key K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, key)
}
