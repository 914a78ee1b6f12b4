package ingress

import (
	"bufio"
	"net"
	"testing"

	"boxgate/audit"
	"boxgate/relay/relaytest"
)

// TestSideOfPublicURLs runs the engine's conformance checks of a side.
func TestSideOfPublicURLs(t *testing.T) {
	t.Parallel()
	relaytest.Run(t, func(t *testing.T, server func(net.Conn, *bufio.Reader)) relaytest.Rig {
		f := start(t, nil)
		f.script(t, "one", server)
		return relaytest.Rig{
			Host: "one" + domain, Dial: func() net.Conn { return f.connectTo(t, "one"+domain) },
			Logged: func(path string) (request, response int64) {
				e := f.event(t, func(e audit.Event) bool { return e.Path == path })
				return e.BytesIn, e.BytesOut
			},
		}
	})
}

// TestSideOfPublicURLsOverHTTP2 does the same over HTTP/2.
func TestSideOfPublicURLsOverHTTP2(t *testing.T) {
	t.Parallel()
	relaytest.RunHTTP2(t, func(t *testing.T, server func(net.Conn, *bufio.Reader)) relaytest.Rig {
		f := start(t, nil)
		f.script(t, "one", server)
		return relaytest.Rig{Host: "one" + domain, Dial: func() net.Conn { return f.handshake(t, f.dial(t, f.https), "one"+domain, "h2") }}
	})
}
