package proxy

import (
	"net"
	"net/netip"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/usage"
)

// Exported for the external tests of this package.
var (
	AccessDenied  = accessDenied
	ErrFrontDials = errFrontDials
	NewFront      = newFront
)

// Find returns the box and the counters for a source address.
func (p *Proxy) Find(from netip.Addr) (*policy.Box, *usage.Box) {
	c := &conn{p: p}
	c.findBox(from)
	return c.box, c.usage
}

// TLSConfigs returns the number of boxes with a TLS configuration.
func (p *Proxy) TLSConfigs() int {
	p.tls.mu.Lock()
	defer p.tls.mu.Unlock()
	return len(p.tls.boxes)
}

// Terminate is terminate for a ClientHello of common length.
func Terminate(p *Proxy, box *policy.Box, client net.Conn, name name.Name, alpn []string) (net.Conn, error) {
	c, err := p.terminate(box, client, 2<<10, name, alpn, false)
	if err != nil {
		return nil, err
	}
	return c, nil
}
