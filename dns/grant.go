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
	known  map[granted]*list.Element // of *held
	byAddr map[netip.Addr][]*held
	order  list.List
}

// held is a grant, and its place among those of its address.
type held struct {
	Grant
	at int
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
		b = &boxGrants{known: map[granted]*list.Element{}, byAddr: map[netip.Addr][]*held{}}
		g.boxes[box] = b
	}
	for _, a := range addrs {
		k := granted{n, a.Unmap()}
		if e := b.known[k]; e != nil {
			old := e.Value.(*held)
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
	for b.order.Len() > 0 && b.order.Front().Value.(*held).Expires.Before(now) {
		g.dropOldestLocked(b)
	}
	if b.order.Len() >= g.perBox {
		g.dropOldestLocked(b)
	}
	if g.total >= g.max {
		g.dropOldestLocked(g.largestLocked())
	}
	same := b.byAddr[k.addr]
	gr := &held{Grant{Name: k.name, Addr: k.addr, Expires: expires}, len(same)}
	b.known[k] = b.order.PushBack(gr)
	b.byAddr[k.addr] = append(same, gr)
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
	gr := b.order.Remove(b.order.Front()).(*held)
	delete(b.known, granted{gr.Name, gr.Addr})
	same := b.byAddr[gr.Addr]
	last := len(same) - 1
	same[gr.at] = same[last]
	same[gr.at].at = gr.at
	same[last] = nil
	if b.byAddr[gr.Addr] = same[:last]; last == 0 {
		delete(b.byAddr, gr.Addr)
	}
	g.total--
}

func (g *grants) has(box policy.BoxID, n policy.Name, a netip.Addr, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.boxes[box]
	if b == nil || n.IsZero() {
		return false
	}
	e := b.known[granted{n, a.Unmap()}]
	return e != nil && now.Before(e.Value.(*held).Expires)
}

// names returns the names granted with a, the latest expiry first.
func (g *grants) names(box policy.BoxID, a netip.Addr, now time.Time) []policy.Name {
	var live []Grant
	g.mu.Lock()
	if b := g.boxes[box]; b != nil {
		for _, gr := range b.byAddr[a.Unmap()] {
			if now.Before(gr.Expires) {
				live = append(live, gr.Grant)
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
