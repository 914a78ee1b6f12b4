package host

import (
	"boxgate/config"
	"boxgate/dns"
	"boxgate/host/share"
	"boxgate/proxy"
)

// dnsLimits returns the limits for the DNS server; what is not configured stays as it is there.
func dnsLimits(l config.Limits, shares share.Descriptors) dns.Limits {
	return dns.Limits{QueriesPerSecond: float64(l.DNSQueries), Burst: 2 * l.DNSQueries, Sockets: shares.Questions()}
}

// limitProxy sets the limits of the proxy.
func limitProxy(l config.Limits, c *proxy.Config) {
	c.MaxConns, c.MaxNewConns, c.MaxInterceptions = l.Connections, l.NewConnections, l.Interceptions
	c.MaxStreams, c.MaxRequests, c.MaxUpstreams, c.PeekTimeout = l.Streams, l.Requests, l.Upstreams, l.PeekTimeout
}
