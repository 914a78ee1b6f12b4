// Package lru has a cache of bounded cost that evicts the least recently used value.
package lru

import (
	"container/list"
	"sync"
)

// Cache is a map bounded by the cost of its values; the least recently used is evicted first. Safe for concurrent use.
// Create it with [New]: the zero value stores no values.
type Cache[K comparable, V any] struct {
	max int

	mu    sync.Mutex
	items map[K]*list.Element // of *item[K, V]
	order list.List           // least recently used first
	cost  int
}

type item[K comparable, V any] struct {
	key   K
	value V
	cost  int
}

// New returns an empty cache for values that cost at most limit in total.
func New[K comparable, V any](limit int) *Cache[K, V] {
	return &Cache[K, V]{max: limit, items: map[K]*list.Element{}}
}

// Get returns the value of k and makes it the most recently used.
func (c *Cache[K, V]) Get(k K) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.items[k]
	if !ok {
		return v, false
	}
	c.order.MoveToBack(e)
	return e.Value.(*item[K, V]).value, true
}

// Put sets the value of k, and evicts others until all fit. A value that alone costs more than the limit is not stored.
// The cost is positive and in the unit of the limit.
func (c *Cache[K, V]) Put(k K, v V, cost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.items[k]; ok {
		c.dropLocked(e)
	}
	if cost > c.max {
		return
	}
	for c.cost+cost > c.max {
		c.dropLocked(c.order.Front())
	}
	c.items[k] = c.order.PushBack(&item[K, V]{k, v, cost})
	c.cost += cost
}

// Len returns the number of values.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.items)
}

// Cost returns the cost of all values.
func (c *Cache[K, V]) Cost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cost
}

func (c *Cache[K, V]) dropLocked(e *list.Element) {
	it := c.order.Remove(e).(*item[K, V])
	delete(c.items, it.key)
	c.cost -= it.cost
}
