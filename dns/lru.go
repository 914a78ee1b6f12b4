package dns

import (
	"container/list"
	"sync"
)

// lru is a map bounded by the cost of its values; the least recently used is evicted first. Safe for concurrent use.
type lru[K comparable, V any] struct {
	max int

	mu    sync.Mutex
	items map[K]*list.Element // of *lruItem[K, V]
	order list.List           // least recently used first
	cost  int
}

type lruItem[K comparable, V any] struct {
	key   K
	value V
	cost  int
}

func newLRU[K comparable, V any](max int) *lru[K, V] {
	return &lru[K, V]{max: max, items: map[K]*list.Element{}}
}

func (l *lru[K, V]) get(k K) (v V, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.items[k]
	if !ok {
		return v, false
	}
	l.order.MoveToBack(e)
	return e.Value.(*lruItem[K, V]).value, true
}

// put sets the value of k, and evicts others until all fit. A value that is too large by itself is not kept.
func (l *lru[K, V]) put(k K, v V, cost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.items[k]; ok {
		l.dropLocked(e)
	}
	if cost > l.max {
		return
	}
	for l.cost+cost > l.max {
		l.dropLocked(l.order.Front())
	}
	l.items[k] = l.order.PushBack(&lruItem[K, V]{k, v, cost})
	l.cost += cost
}

func (l *lru[K, V]) dropLocked(e *list.Element) {
	it := l.order.Remove(e).(*lruItem[K, V])
	delete(l.items, it.key)
	l.cost -= it.cost
}
