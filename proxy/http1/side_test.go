package http1_test

import (
	"bufio"
	"net"
	"testing"

	"boxgate/audit"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
	"boxgate/relay/relaytest"
)

// TestSideOfEgress walks what holds on every side of the engine.
func TestSideOfEgress(t *testing.T) {
	t.Parallel()
	relaytest.Run(t, func(t *testing.T, server func(net.Conn, *bufio.Reader)) relaytest.Rig {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		port := l.RawServer(true, server)
		l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
		return relaytest.Rig{
			Host: proxytest.HostPort(port), Says: string(name.ReasonBadRequest), Dial: func() net.Conn { return l.DialPair(proxytest.API, port, true) },
			Logged: func(path string) (request, response int64) {
				e := l.Want(path, func(e audit.Event) bool { return e.Path == path && e.Phase != audit.PhaseOpen })
				return e.BytesOut, e.BytesIn
			},
		}
	})
}
