package certs

import (
	"container/list"
	"crypto/tls"

	"boxgate/policy/name"
)

// leafLRU keeps the most recently used leaves, at most max of them. It is not safe for concurrent use.
type leafLRU struct {
	max   int
	order *list.List // of *leafEntry, most recently used first
	byKey map[name.Name]*list.Element
}

type leafEntry struct {
	name name.Name
	leaf *tls.Certificate
}

func newLeafLRU(limit int) leafLRU {
	return leafLRU{max: limit, order: list.New(), byKey: make(map[name.Name]*list.Element)}
}

func (l *leafLRU) get(n name.Name) *tls.Certificate {
	e, ok := l.byKey[n]
	if !ok {
		return nil
	}
	l.order.MoveToFront(e)
	return entry(e).leaf
}

func (l *leafLRU) put(n name.Name, leaf *tls.Certificate) {
	if e, ok := l.byKey[n]; ok {
		entry(e).leaf = leaf
		l.order.MoveToFront(e)
		return
	}
	l.byKey[n] = l.order.PushFront(&leafEntry{name: n, leaf: leaf})
	for l.order.Len() > l.max {
		oldest := l.order.Back()
		delete(l.byKey, entry(oldest).name)
		l.order.Remove(oldest)
	}
}

// entry unwraps an element; the list holds nothing but *leafEntry.
func entry(e *list.Element) *leafEntry {
	le, ok := e.Value.(*leafEntry)
	if !ok {
		panic("certs: a foreign value in the leaf list")
	}
	return le
}
