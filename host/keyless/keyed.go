package keyless

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"

	"boxgate/quota"
)

// Keyed bounds the connections that have shown a key, of all listeners: those of one key, and those of all keys. One more takes the
// place of the connection that has been idle for longest: of the same key if that has as many as it may, otherwise of the key with
// most of them that is not an admin key. Where none is idle, the request is refused. Create it with [NewKeyed]. Safe for concurrent use.
type Keyed struct {
	book *quota.Book

	mu      sync.Mutex
	holders map[holder]*keyHolder
}

type holder struct{ what, id string }

// keyHolder has the connections of one key.
type keyHolder struct {
	operator bool
	n        int
	idle     list.List // of *conn, in the order in which they became idle
}

// keyed is how a connection that has shown a key is counted. Keyed.mu guards it.
type keyed struct {
	holder  quota.Holder
	release func() // nil: it is not counted
	idle    *list.Element
	closed  bool
}

// NewKeyed returns bounds within the quotas of a book.
func NewKeyed(book *quota.Book) *Keyed {
	return &Keyed{book: book, holders: map[holder]*keyHolder{}}
}

// Shown notes that a valid key came over the connection of a request. It fails with a *[quota.Error] if there are too many
// connections, and the request must be refused and its connection closed.
func (k *Keyed) Shown(r *http.Request, h quota.Holder) error {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok || c.listener.Keyed != k {
		return nil
	}
	evicted, err := k.count(c, h)
	for _, idle := range evicted { // requests of other keys do not wait for that
		_ = idle.Conn.Close() // its server notices, and calls Close
	}
	return err
}

// count counts a connection that has shown a key, and returns those that have to go for it.
func (k *Keyed) count(c *conn, h quota.Holder) (evicted []*conn, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.keyed.closed { // it gave way at the moment when this request came
		return nil, &quota.Error{Holder: h, Kind: quota.Connections, Limit: k.book.Limit(h, quota.Connections), After: time.Second}
	}
	if c.keyed.release != nil && c.keyed.holder == h {
		return nil, nil
	}
	k.forgetLocked(c)
	release, err := k.book.Take(h, quota.Connections, 1)
	for err != nil {
		exceeded, _ := err.(*quota.Error) //nolint:errorlint // as Take returns it
		idlest := k.idlestLocked(h, exceeded)
		if idlest == nil {
			return evicted, err
		}
		k.forgetLocked(idlest)
		idlest.keyed.closed = true
		evicted = append(evicted, idlest)
		release, err = k.book.Take(h, quota.Connections, 1)
	}
	c.keyed.holder, c.keyed.release = h, release
	k.ofLocked(h).n++
	c.listener.remove(c)
	return evicted, nil
}

func (k *Keyed) ofLocked(h quota.Holder) *keyHolder {
	key := holder{h.What, h.ID}
	if k.holders[key] == nil {
		k.holders[key] = &keyHolder{operator: h.Operator}
	}
	return k.holders[key]
}

// idlestLocked returns the connection that gives way to one more of a holder; nil: none is idle.
func (k *Keyed) idlestLocked(h quota.Holder, exceeded *quota.Error) *conn {
	from, n := k.holders[holder{h.What, h.ID}], 0
	if from != nil {
		n = from.n
	}
	if exceeded != nil && exceeded.Shared {
		for _, other := range k.holders {
			if other.idle.Len() > 0 && !other.operator && other.n > n { // never one with less
				from, n = other, other.n
			}
		}
	}
	if from == nil || from.idle.Len() == 0 {
		return nil
	}
	return from.idle.Front().Value.(*conn)
}

// forgetLocked no longer counts a connection.
func (k *Keyed) forgetLocked(c *conn) {
	if c.keyed.release == nil {
		return
	}
	h := c.keyed.holder
	own := k.ofLocked(h)
	if c.keyed.idle != nil {
		own.idle.Remove(c.keyed.idle)
		c.keyed.idle = nil
	}
	if own.n--; own.n == 0 {
		delete(k.holders, holder{h.What, h.ID})
	}
	c.keyed.release()
	c.keyed.release = nil
}

// State notes which connections are idle; it is for [http.Server].
func (k *Keyed) State(accepted net.Conn, state http.ConnState) {
	c, ok := accepted.(*conn)
	if !ok || c.listener.Keyed != k {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.keyed.release == nil {
		return
	}
	own := k.ofLocked(c.keyed.holder)
	if c.keyed.idle != nil {
		own.idle.Remove(c.keyed.idle)
		c.keyed.idle = nil
	}
	if state == http.StateIdle {
		c.keyed.idle = own.idle.PushBack(c)
	}
}

// forgetKey no longer counts a connection that is closed.
func (c *conn) forgetKey() {
	k := c.listener.Keyed
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c.keyed.closed = true
	k.forgetLocked(c)
}
