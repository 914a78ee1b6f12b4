package dns

import (
	"cmp"
	"container/list"
	"net/netip"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// grantGrace is how long a grant outlives the TTL it was answered with: clients connect a little after the lookup.
const grantGrace = time.Minute

// Grant records that a box was told that a name has an address. It lets the proxy dial the address the box chose, and
// tell the names of connections that carry none. It allows nothing: the address is judged again when it is dialled.
type Grant struct {
	Name    policy.Name
	Addr    netip.Addr
	Expires time.Time
}

// grants remembers what each box was told, within a limit for each box and one for all.
type grants struct {
	perBox, max int

	mu    sync.Mutex
	boxes map[policy.BoxID]*boxGrants
	total int
}

// boxGrants are the grants of one box: known and byAddr to find them, order (least recently granted first) to drop them.
type boxGrants struct {
	known  map[granted]*list.Element      // of *Grant
	byAddr map[netip.Addr][]*list.Element // of *Grant
	order  list.List
}

// granted is what a grant is known by.
type granted struct {
	name policy.Name
	addr netip.Addr
}

func newGrants(perBox, max int) *grants {
	return &grants{perBox: perBox, max: max, boxes: map[policy.BoxID]*boxGrants{}}
}

// remember notes that box was told addrs for n, and reports whether they are the first of the box. A repeated grant gets
// the later expiry.
func (g *grants) remember(box policy.BoxID, n policy.Name, addrs []netip.Addr, expires time.Time) (first bool) {
	if len(addrs) == 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.boxes[box]
	if b == nil {
		first = true
		b = &boxGrants{known: map[granted]*list.Element{}, byAddr: map[netip.Addr][]*list.Element{}}
		g.boxes[box] = b
	}
	for _, a := range addrs {
		k := granted{n, a.Unmap()}
		if e := b.known[k]; e != nil {
			old := e.Value.(*Grant)
			old.Expires = later(old.Expires, expires)
			b.order.MoveToBack(e)
		} else {
			g.addLocked(b, k, expires)
		}
	}
	return first
}

// addLocked adds a grant, and drops those that have expired and those beyond the limits.
func (g *grants) addLocked(b *boxGrants, k granted, expires time.Time) {
	now := time.Now()
	for b.order.Len() > 0 && b.order.Front().Value.(*Grant).Expires.Before(now) {
		g.dropOldestLocked(b)
	}
	if b.order.Len() >= g.perBox {
		g.dropOldestLocked(b)
	}
	if g.total >= g.max {
		g.dropOldestLocked(g.largestLocked())
	}
	e := b.order.PushBack(&Grant{Name: k.name, Addr: k.addr, Expires: expires})
	b.known[k] = e
	b.byAddr[k.addr] = append(b.byAddr[k.addr], e)
	g.total++
}

// largestLocked returns the box with the most grants, which loses one when the limit for all boxes is reached.
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
	e := b.order.Front()
	gr := b.order.Remove(e).(*Grant)
	delete(b.known, granted{gr.Name, gr.Addr})
	rest := slices.DeleteFunc(b.byAddr[gr.Addr], func(o *list.Element) bool { return o == e })
	if len(rest) == 0 {
		delete(b.byAddr, gr.Addr)
	} else {
		b.byAddr[gr.Addr] = rest
	}
	g.total--
}

func (g *grants) has(box policy.BoxID, n policy.Name, a netip.Addr, now time.Time) bool {
	return !n.IsZero() && slices.Contains(g.names(box, a, now), n)
}

// names returns the names granted with a, the latest expiry first.
func (g *grants) names(box policy.BoxID, a netip.Addr, now time.Time) []policy.Name {
	var live []Grant
	g.mu.Lock()
	if b := g.boxes[box]; b != nil {
		for _, e := range b.byAddr[a.Unmap()] {
			if gr := e.Value.(*Grant); now.Before(gr.Expires) {
				live = append(live, *gr)
			}
		}
	}
	g.mu.Unlock()
	slices.SortStableFunc(live, func(x, y Grant) int { return cmp.Compare(y.Expires.UnixNano(), x.Expires.UnixNano()) })
	names := make([]policy.Name, len(live))
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
