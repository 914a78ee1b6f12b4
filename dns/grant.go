package dns

import (
	"cmp"
	"container/list"
	"net/netip"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// grantGrace is how long a grant outlives the TTL of its answer, and the last connection to its address: clients
// connect a little after the lookup, and reconnect to an address they have resolved before.
const grantGrace = time.Minute

// Grant records that a box received an address for a name. The proxy dials the address that the box chose, and derives
// the name of connections that do not carry one. A grant gives no permission: the policy decides on the address again when it
// is dialled.
type Grant struct {
	Name    name.Name
	Addr    netip.Addr
	Expires time.Time
}

// grants remembers the grants of all boxes, with a limit for each box and one for all.
type grants struct {
	perBox, max int

	mu    sync.Mutex
	boxes map[policy.BoxID]*boxGrants
	total int
}

// boxGrants are the grants of one box: known and byAddr to find them, order (least recently granted first) to evict
// them.
type boxGrants struct {
	known  map[grantKey]*list.Element // of *heldGrant
	byAddr map[netip.Addr][]*heldGrant
	order  list.List
}

// heldGrant is a grant with its index in byAddr and the number of open connections that use it.
type heldGrant struct {
	Grant
	index int
	conns int
}

// isLive reports whether the box may still be using the grant: it has not expired, or has an open connection.
func (h *heldGrant) isLive(now time.Time) bool { return h.conns > 0 || now.Before(h.Expires) }

// grantKey is the key of a grant.
type grantKey struct {
	name name.Name
	addr netip.Addr
}

func newGrants(perBox, max int) *grants {
	return &grants{perBox: perBox, max: max, boxes: map[policy.BoxID]*boxGrants{}}
}

// remember records that box received addrs for n, and reports whether these are the first grants of the box. A repeated
// grant gets the later expiry.
func (g *grants) remember(box policy.BoxID, n name.Name, addrs []netip.Addr, expires time.Time) (first bool) {
	if len(addrs) == 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.boxes[box]
	if b == nil {
		first = true
		b = &boxGrants{known: map[grantKey]*list.Element{}, byAddr: map[netip.Addr][]*heldGrant{}}
		g.boxes[box] = b
	}
	for _, a := range addrs {
		k := grantKey{n, a.Unmap()}
		if e := b.known[k]; e != nil {
			old := e.Value.(*heldGrant)
			old.Expires = later(old.Expires, expires)
			b.order.MoveToBack(e)
		} else {
			g.addLocked(b, k, expires)
		}
	}
	return first
}

// addLocked adds a grant, and evicts expired grants and those beyond the limits.
func (g *grants) addLocked(b *boxGrants, k grantKey, expires time.Time) {
	g.dropExpiredLocked(b, time.Now())
	if b.order.Len() >= g.perBox {
		g.dropOldestLocked(b)
	}
	if g.total >= g.max {
		g.dropOldestLocked(g.largestLocked())
	}
	same := b.byAddr[k.addr]
	gr := &heldGrant{Grant: Grant{Name: k.name, Addr: k.addr, Expires: expires}, index: len(same)}
	b.known[k] = b.order.PushBack(gr)
	b.byAddr[k.addr] = append(same, gr)
	g.total++
}

// dropExpiredLocked evicts expired grants from the front of the order. A grant with open connections is renewed and
// moves to the back, so that it neither hides expired ones behind it nor is evicted first.
func (g *grants) dropExpiredLocked(b *boxGrants, now time.Time) {
	for e := b.order.Front(); e != nil && e.Value.(*heldGrant).Expires.Before(now); e = b.order.Front() {
		if h := e.Value.(*heldGrant); h.conns > 0 {
			h.Expires = now.Add(grantGrace)
			b.order.MoveToBack(e)
			continue
		}
		g.dropOldestLocked(b)
	}
}

// largestLocked returns the box with the most grants. It loses one when the limit for all boxes is reached.
func (g *grants) largestLocked() *boxGrants {
	var largest *boxGrants
	for _, b := range g.boxes {
		if largest == nil || b.order.Len() > largest.order.Len() {
			largest = b
		}
	}
	return largest
}

func (g *grants) dropOldestLocked(b *boxGrants) {
	gr := b.order.Remove(b.order.Front()).(*heldGrant)
	delete(b.known, grantKey{gr.Name, gr.Addr})
	same := b.byAddr[gr.Addr]
	last := len(same) - 1
	same[gr.index] = same[last]
	same[gr.index].index = gr.index
	same[last] = nil
	if b.byAddr[gr.Addr] = same[:last]; last == 0 {
		delete(b.byAddr, gr.Addr)
	}
	g.total--
}

func (g *grants) contains(box policy.BoxID, n name.Name, a netip.Addr, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.boxes[box]
	if b == nil || n.IsZero() {
		return false
	}
	e := b.known[grantKey{n, a.Unmap()}]
	return e != nil && e.Value.(*heldGrant).isLive(now)
}

// retain keeps a live grant from expiring until release is called, and for grantGrace after that. It returns nil if there
// is no such grant. The limits still apply: an evicted grant is gone even if it has open connections.
func (g *grants) retain(box policy.BoxID, n name.Name, a netip.Addr) (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.boxes[box]
	if b == nil || n.IsZero() {
		return nil
	}
	e := b.known[grantKey{n, a.Unmap()}]
	if e == nil || !e.Value.(*heldGrant).isLive(time.Now()) {
		return nil
	}
	h := e.Value.(*heldGrant)
	h.conns++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		h.conns--
		h.Expires = later(h.Expires, time.Now().Add(grantGrace))
	}
}

// namesOf returns the names granted with a, the latest expiry first.
func (g *grants) namesOf(box policy.BoxID, a netip.Addr, now time.Time) []name.Name {
	var live []Grant
	g.mu.Lock()
	if b := g.boxes[box]; b != nil {
		for _, gr := range b.byAddr[a.Unmap()] {
			if gr.isLive(now) {
				live = append(live, gr.Grant)
			}
		}
	}
	g.mu.Unlock()
	slices.SortStableFunc(live, func(x, y Grant) int { return cmp.Compare(y.Expires.UnixNano(), x.Expires.UnixNano()) })
	names := make([]name.Name, len(live))
	for i, gr := range live {
		names[i] = gr.Name
	}
	return names
}

func (g *grants) forget(box policy.BoxID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b := g.boxes[box]; b != nil {
		g.total -= b.order.Len()
		delete(g.boxes, box)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// sinkGrace is how long connections to the sink are attributed to the name that was answered with it.
const sinkGrace = 5 * time.Second

// sinkTracker tracks the name that was last answered to a box with the sink. The zero value is ready to use.
type sinkTracker struct {
	mu      sync.Mutex
	name    name.Name
	at      time.Time
	otherAt time.Time // when the box last received it for another name

	services []name.Name // that the box has received it for, the latest first
}

// maxSinkServices is the number of services that are remembered for a box.
const maxSinkServices = 16

// recordService records that the box received the sink for a service.
func (s *sinkTracker) recordService(n name.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := slices.DeleteFunc(s.services, func(o name.Name) bool { return o == n })
	s.services = slices.Insert(rest[:min(len(rest), maxSinkServices-1)], 0, n)
}

// names returns the denied name, the zero name if there were several, and the services.
func (s *sinkTracker) names(now time.Time) []name.Name {
	names := s.onlyName(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if names == nil && !s.name.IsZero() && now.Sub(s.at) <= sinkGrace {
		names = []name.Name{{}}
	}
	return append(names, s.services...)
}

// recordName records that the box received the sink for a name.
func (s *sinkTracker) recordName(n name.Name, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n != s.name {
		s.name, s.otherAt = n, s.at
	}
	s.at = now
}

// onlyName returns the name, or nil if a connection may also be for another name.
func (s *sinkTracker) onlyName(now time.Time) []name.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name.IsZero() || now.Sub(s.at) > sinkGrace || now.Sub(s.otherAt) <= sinkGrace {
		return nil
	}
	return []name.Name{s.name}
}

// sinkNames returns the names that a connection of a box to the sink may be for: see [sinkTracker.names].
func (s *Server) sinkNames(box policy.BoxID, now time.Time) []name.Name {
	if v, ok := s.usages.known.Load(box); ok {
		return v.(*usage).sinkTracker.names(now)
	}
	return nil
}

func (s *Server) isSink(a netip.Addr) bool {
	return a.IsValid() && (a.Unmap() == s.sinkV4 || a.Unmap() == s.sinkV6)
}
