package http2_test

import (
	"bufio"
	"net"
	"testing"

	"boxgate/proxy/proxytest"
	"boxgate/relay/relaytest"
)

// TestSideOfEgressOverHTTP2 walks what holds on every side of the engine for clients of HTTP/2.
func TestSideOfEgressOverHTTP2(t *testing.T) {
	t.Parallel()
	relaytest.RunHTTP2(t, func(t *testing.T, server func(net.Conn, *bufio.Reader)) relaytest.Rig {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		port := l.RawServer(true, server)
		l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
		return relaytest.Rig{Host: proxytest.HostPort(port), Dial: func() net.Conn { return l.DialPair(proxytest.API, port, true, "h2") }}
	})
}
