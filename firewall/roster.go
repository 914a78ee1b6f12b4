package firewall

import (
	"net/netip"

	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/policy"
)

// roster is the set of attached boxes, indexed by ID, addresses, interface and namespace. The zero value is empty.
type roster struct {
	byID    map[policy.BoxID]*box
	byAddr  map[netip.Addr]*box
	byIndex map[int]*box // of the interface on the host
	byNS    map[namespace.ID]*box
}

// add adds a box, or moves it to a new place.
func (r *roster) add(b *box, at link.Place) {
	if r.byID == nil {
		r.byID, r.byAddr = map[policy.BoxID]*box{}, map[netip.Addr]*box{}
		r.byIndex, r.byNS = map[int]*box{}, map[namespace.ID]*box{}
	}
	r.remove(b.Box)
	b.place = at
	r.byID[b.Box], r.byIndex[at.Index], r.byNS[at.Namespace] = b, b, b
	for _, a := range b.Sources {
		r.byAddr[a] = b
	}
}

// remove removes a box. Index entries that another box has taken over stay, because the kernel reuses its numbers.
func (r *roster) remove(id policy.BoxID) {
	b := r.byID[id]
	if b == nil {
		return
	}
	delete(r.byID, id)
	if r.byIndex[b.place.Index] == b {
		delete(r.byIndex, b.place.Index)
	}
	if r.byNS[b.place.Namespace] == b {
		delete(r.byNS, b.place.Namespace)
	}
	for _, a := range b.Sources {
		if r.byAddr[a] == b {
			delete(r.byAddr, a)
		}
	}
}
