package node

import "k8s.io/utils/lru"

// cacheSize is many times the volumes of a node.
const cacheSize = 4096

// cache is a typed lru.Cache: what is forgotten is learned again.
type cache[K comparable, V any] struct{ lru *lru.Cache }

func newCache[K comparable, V any]() cache[K, V] { return cache[K, V]{lru.New(cacheSize)} }

// get returns the zero value for an unknown key.
func (c cache[K, V]) get(key K) (V, bool) {
	got, _ := c.lru.Get(key)
	v, known := got.(V)
	return v, known
}

func (c cache[K, V]) add(key K, v V) { c.lru.Add(key, v) }
func (c cache[K, V]) remove(key K)   { c.lru.Remove(key) }
