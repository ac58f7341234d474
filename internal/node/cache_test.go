package node

import "testing"

func TestCache(t *testing.T) {
	c := newCache[int, string]()
	if v, known := c.get(1); known || v != "" {
		t.Errorf("%q before anything is known", v)
	}
	c.remove(1)
	c.add(1, "a")
	c.add(1, "b")
	if v, known := c.get(1); !known || v != "b" {
		t.Errorf("%q, %v", v, known)
	}
	for i := range 2 * cacheSize {
		c.add(10+i, "x")
		if _, known := c.get(10 + i); !known || c.lru.Len() > cacheSize {
			t.Fatalf("the last is known: %v; %d are kept", known, c.lru.Len())
		}
	}
	if _, known := c.get(1); known {
		t.Error("the oldest is known")
	}
	c.remove(10 + 2*cacheSize - 1)
	if c.lru.Len() != cacheSize-1 {
		t.Errorf("%d are kept after one was removed", c.lru.Len())
	}
}
