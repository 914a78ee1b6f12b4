package ingress

import (
	"net"
	"net/netip"
	"sync"
)

// places bounds what visitors hold at a time: no URL (or box, where that is what is counted) has more than half of it, and no
// network of visitors more than a quarter, so that neither keeps the others out. One who has an IPv6 site, a /48, has as many
// networks as he likes: a site has no more than half.
type places struct {
	most int

	mu    sync.Mutex
	taken int
	urls  map[string]int
	peers map[netip.Prefix]int
}

// take takes a place for a URL and a network of visitors, and reports whether there was one. Either may be its zero value,
// and is not counted then.
func (p *places) take(url string, peer netip.Prefix) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	site := siteOf(peer)
	if p.taken >= p.most || p.urls[url] >= p.half() || p.peers[peer] >= max(1, p.most/4) || p.peers[site] >= p.half() {
		return false
	}
	if p.peers == nil {
		p.peers = map[netip.Prefix]int{}
	}
	if p.urls == nil {
		p.urls = map[string]int{}
	}
	p.taken++
	if url != "" {
		p.urls[url]++
	}
	for _, network := range []netip.Prefix{peer, site} {
		if network.IsValid() {
			p.peers[network]++
		}
	}
	return true
}

// name counts a place that was taken without a URL for one, and reports whether that may have it.
func (p *places) name(url string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.urls[url] >= p.half() {
		return false
	}
	if p.urls == nil {
		p.urls = map[string]int{}
	}
	p.urls[url]++
	return true
}

// half is how much one URL, or one site, may have.
func (p *places) half() int { return max(1, p.most/2) }

// leave gives a place back.
func (p *places) leave(url string, peer netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.urls[url]--; p.urls[url] <= 0 {
		delete(p.urls, url)
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
