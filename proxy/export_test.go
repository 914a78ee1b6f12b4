package proxy

import (
	"net/netip"

	"boxgate/policy"
	"boxgate/proxy/usage"
)

// For the external tests of this package.
var (
	AccessDenied  = accessDenied
	ErrFrontDials = errFrontDials
	NewFront      = newFront
	Terminate     = (*Proxy).terminate
)

// Find returns the box that a connection from an address is of, and its counters.
func (p *Proxy) Find(from netip.Addr) (*policy.Box, *usage.Box) {
	c := &conn{p: p}
	c.find(from)
	return c.box, c.usage
}

// TLSConfigs returns how many boxes have a TLS configuration.
func (p *Proxy) TLSConfigs() int {
	p.tls.mu.Lock()
	defer p.tls.mu.Unlock()
	return len(p.tls.boxes)
}
