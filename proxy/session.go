package proxy

import (
	"net"
	"net/netip"

	"boxgate/policy"
	"boxgate/proxy/usage"
)

// session is one client connection whose requests are judged one by one.
type session struct {
	p     *Proxy
	box   *policy.Box
	usage *usage.Box  // what is counted for the box
	name  policy.Name // SNI of an intercepted connection; zero on plain HTTP (Host decides per request)
	// orig is the original destination as the box asked. Its Addr is invalid when that was the sink or the explicit
	// proxy: then only a name, or an address literal as authority of an explicit request, says where to go.
	orig   netip.AddrPort
	port   uint16 // destination port; on the explicit proxy 0: each request's authority names its own (80 if it does not)
	secure bool   // TLS terminated: header rules apply
	// explicit says that the requests came to the explicit proxy: they must be in absolute form with the scheme http.
	explicit bool
	client   net.Conn // *tls.Conn when secure; for plain HTTP a conn that replays the peeked bytes first
	alpn     string
	live     *liveConn // registration in the live table: byte counters (client's conn counts by itself), close for Recheck
}
