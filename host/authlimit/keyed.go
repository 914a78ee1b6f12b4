package authlimit

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"

	"boxgate/quota"
)

// Keyed limits the connections of clients that presented an API key, over all listeners: per key and for all keys
// together. A connection above a limit evicts the one that has been idle longest: of the same key if the key is at its
// limit, otherwise of the key with the most connections that is not an admin key. If no connection is idle, the request
// is refused. Create it with [NewKeyed]. Safe for concurrent use.
type Keyed struct {
	book *quota.Book

	mu      sync.Mutex
	holders map[holder]*keyHolder
}

type holder struct{ what, id string }

// keyHolder tracks the connections of one key.
type keyHolder struct {
	operator bool
	n        int
	idle     list.List // of *conn, idle longest first
}

// keyed is the accounting state of a connection with an API key. Keyed.mu guards it.
type keyed struct {
	holder  quota.Holder
	release func() // nil: not counted
	idle    *list.Element
	closed  bool
}

// NewKeyed returns a Keyed with the limits of book.
func NewKeyed(book *quota.Book) *Keyed {
	return &Keyed{book: book, holders: map[holder]*keyHolder{}}
}

// Shown records that a valid key was presented on the connection of a request. It returns a *[quota.Error] if there are
// too many connections; then the request must be refused and its connection closed.
func (k *Keyed) Shown(r *http.Request, h quota.Holder) error {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok || c.listener.Keyed != k {
		return nil
	}
	evicted, err := k.count(c, h)
	for _, idle := range evicted { // outside the lock, so that requests of other keys do not wait
		_ = idle.Conn.Close() // its server notices, and calls Close
	}
	return err
}

// count counts a connection for a key, and returns the evicted connections.
func (k *Keyed) count(c *conn, h quota.Holder) (evicted []*conn, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.keyed.closed { // it was evicted while this request arrived
		return nil, &quota.Error{Holder: h, Kind: quota.Connections, Limit: k.book.Limit(h, quota.Connections), After: time.Second}
	}
	if c.keyed.release != nil && c.keyed.holder == h {
		return nil, nil
	}
	k.uncountLocked(c)
	release, err := k.book.Acquire(h, quota.Connections, 1)
	for err != nil {
		exceeded, _ := err.(*quota.Error) // as Take returns it
		idlest := k.idlestLocked(h, exceeded)
		if idlest == nil {
			return evicted, err
		}
		k.uncountLocked(idlest)
		idlest.keyed.closed = true
		evicted = append(evicted, idlest)
		release, err = k.book.Acquire(h, quota.Connections, 1)
	}
	c.keyed.holder, c.keyed.release = h, release
	k.holderLocked(h).n++
	c.listener.remove(c)
	return evicted, nil
}

func (k *Keyed) holderLocked(h quota.Holder) *keyHolder {
	key := holder{h.Type, h.ID}
	if k.holders[key] == nil {
		k.holders[key] = &keyHolder{operator: h.Operator}
	}
	return k.holders[key]
}

// idlestLocked returns the connection to evict for one more connection of h, nil if no candidate is idle.
func (k *Keyed) idlestLocked(h quota.Holder, exceeded *quota.Error) *conn {
	from, n := k.holders[holder{h.Type, h.ID}], 0
	if from != nil {
		n = from.n
	}
	if exceeded != nil && exceeded.Shared {
		for _, other := range k.holders {
			if other.idle.Len() > 0 && !other.operator && other.n > n { // never from a key with fewer connections than h
				from, n = other, other.n
			}
		}
	}
	if from == nil || from.idle.Len() == 0 {
		return nil
	}
	return from.idle.Front().Value.(*conn)
}

// uncountLocked removes a connection from the accounting.
func (k *Keyed) uncountLocked(c *conn) {
	if c.keyed.release == nil {
		return
	}
	h := c.keyed.holder
	own := k.holderLocked(h)
	if c.keyed.idle != nil {
		own.idle.Remove(c.keyed.idle)
		c.keyed.idle = nil
	}
	if own.n--; own.n == 0 {
		delete(k.holders, holder{h.Type, h.ID})
	}
	c.keyed.release()
	c.keyed.release = nil
}

// State tracks idle connections; it is an [http.Server.ConnState] callback.
func (k *Keyed) State(accepted net.Conn, state http.ConnState) {
	c, ok := below(accepted).(*conn)
	if !ok || c.listener.Keyed != k {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.keyed.release == nil {
		return
	}
	own := k.holderLocked(c.keyed.holder)
	if c.keyed.idle != nil {
		own.idle.Remove(c.keyed.idle)
		c.keyed.idle = nil
	}
	if state == http.StateIdle {
		c.keyed.idle = own.idle.PushBack(c)
	}
}

// uncountKey removes a closed connection from the accounting.
func (c *conn) uncountKey() {
	k := c.listener.Keyed
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c.keyed.closed = true
	k.uncountLocked(c)
}
