package ingress

import (
	"net"
	"net/netip"
	"sync"
)

// places limits how much visitors hold at a time, so that no box or network keeps others out. A box gets half of the places at
// most, and a network of visitors a quarter. An IPv6 site (/48) has many networks, and gets half. As several boxes and
// networks could still take everything, the last quarter is for holders of few places: the number they may hold sinks with
// each place taken, and a holder without any always gets one.
type places struct {
	most int

	mu    sync.Mutex
	taken int
	boxes map[string]int
	peers map[netip.Prefix]int
}

// In the last quarter, a network, site or box gets another place only if its places, including the new one, times this factor
// are no more than the remaining places.
const (
	scarceNetwork = 16
	scarceSite    = 4
	scarceBox     = 2
)

// acquire takes a place for a box and a network of visitors, and reports whether there was one. A zero box or network is not
// counted.
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

// room reports whether a holder of has places, limited to most, may take another one that leaves left places free.
func (p *places) room(has, most, scarce, left int) bool {
	return has < most && (has == 0 || left >= p.most/4 || (has+1)*scarce <= left)
}

// name counts a place, which was taken without a box, for a box, and reports whether the box may have it.
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

// half is the limit of a box and of a site; quarter is the limit of a network.
func (p *places) half() int    { return max(1, p.most/2) }
func (p *places) quarter() int { return max(1, p.most/4) }

// scarce reports whether less than a quarter of the places is left.
func (p *places) scarce() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most-p.taken < p.most/4
}

// weight returns the larger of a box's and a network's share of their limits, and the network's share. 1 is the limit.
func (p *places) weight(box string, peer netip.Prefix) (most, network float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	network = max(float64(p.peers[peer])/float64(p.quarter()), float64(p.peers[siteOf(peer)])/float64(p.half()))
	return max(float64(p.boxes[box])/float64(p.half()), network), network
}

// release returns a place.
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

// siteOf returns the /48 of an IPv6 network, the most that one customer of a provider gets (RFC 6177). It returns the zero
// Prefix for IPv4.
func siteOf(network netip.Prefix) netip.Prefix {
	if !network.Addr().Is6() || network.Bits() < 48 {
		return netip.Prefix{}
	}
	site, _ := network.Addr().Prefix(48) // zero for an invalid address
	return site
}

// networkOf returns the network that counts as one visitor: an IPv4 address, or the /64 of an IPv6 address.
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
	network, _ := a.Prefix(bits) // zero for an invalid address
	return network
}
