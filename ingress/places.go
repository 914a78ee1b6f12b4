package ingress

import (
	"net"
	"net/netip"
	"sync"
)

// places bounds what visitors hold at a time: no box has more than half of it, and no network of visitors more than a quarter, so that
// neither keeps the others out. One who has an IPv6 site, a /48, has as many networks as he likes: a site has no more than half. Such
// parts of several boxes and networks add up to everything. So the last quarter is for those that have little compared to what is
// left of it: the threshold sinks with every place that is taken, and one that has nothing finds a place.
type places struct {
	most int

	mu    sync.Mutex
	taken int
	boxes map[string]int
	peers map[netip.Prefix]int
}

// Of the last quarter a network, a site and a box may have a place more if that many times what each then has is left.
const (
	scarceNetwork = 16
	scarceSite    = 4
	scarceBox     = 2
)

// acquire takes a place for a box and a network of visitors, and reports whether there was one. Either may be its zero value,
// and is not counted then.
func (p *places) acquire(box string, peer netip.Prefix) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	site := siteOf(peer)
	left := p.most - p.taken - 1
	if left < 0 || !p.room(p.boxes[box], p.half(), scarceBox, left) || !p.room(p.peers[peer], p.quarter(), scarceNetwork, left) ||
		!p.room(p.peers[site], p.half(), scarceSite, left) {
		return false
	}
	if p.peers == nil {
		p.peers = map[netip.Prefix]int{}
	}
	if p.boxes == nil {
		p.boxes = map[string]int{}
	}
	p.taken++
	if box != "" {
		p.boxes[box]++
	}
	for _, network := range []netip.Prefix{peer, site} {
		if network.IsValid() {
			p.peers[network]++
		}
	}
	return true
}

// room reports whether one that has so many places may have one more, after which so many are left.
func (p *places) room(has, most, scarce, left int) bool {
	return has < most && (has == 0 || left >= p.most/4 || (has+1)*scarce <= left)
}

// name counts a place that was taken without a box for one, and reports whether that may have it.
func (p *places) name(box string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.room(p.boxes[box], p.half(), scarceBox, p.most-p.taken) {
		return false
	}
	if p.boxes == nil {
		p.boxes = map[string]int{}
	}
	p.boxes[box]++
	return true
}

// half is how much one box, or one site, may have, and quarter how much one network may.
func (p *places) half() int    { return max(1, p.most/2) }
func (p *places) quarter() int { return max(1, p.most/4) }

// scarce reports whether no more than the last quarter is left.
func (p *places) scarce() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most-p.taken < p.most/4
}

// weight returns how much a box or a network has of what it may have, of which it has more, and how much the network has: 1 is all.
func (p *places) weight(box string, peer netip.Prefix) (most, network float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	network = max(float64(p.peers[peer])/float64(p.quarter()), float64(p.peers[siteOf(peer)])/float64(p.half()))
	return max(float64(p.boxes[box])/float64(p.half()), network), network
}

// release gives a place back.
func (p *places) release(box string, peer netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.boxes[box]--; p.boxes[box] <= 0 {
		delete(p.boxes, box)
	}
	for _, network := range []netip.Prefix{peer, siteOf(peer)} {
		if p.peers[network]--; p.peers[network] <= 0 {
			delete(p.peers, network)
		}
	}
}

// siteOf returns the /48 that an IPv6 network is a part of: what one customer of a provider has at most (RFC 6177). An IPv4
// address has no site.
func siteOf(network netip.Prefix) netip.Prefix {
	if !network.Addr().Is6() || network.Bits() < 48 {
		return netip.Prefix{}
	}
	site, _ := network.Addr().Prefix(48) // the zero Prefix of an invalid address
	return site
}

// networkOf returns what counts as one visitor: an IPv4 address, or the /64 network of an IPv6 address.
func networkOf(at net.Addr) netip.Prefix {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	a := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	network, _ := a.Prefix(bits) // the zero Prefix of an invalid address
	return network
}
