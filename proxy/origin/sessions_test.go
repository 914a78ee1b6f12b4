package origin_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/proxy/proxytest"
)

// TestAttackLongSessions: the gateway resumes a session, but does not keep one with a long ticket: a server could fill the memory
// with many of them.
func TestAttackLongSessions(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		more    int // bytes of the ticket
		resumed bool
	}{"as is usual": {0, true}, "long": {13 << 10, false}} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(what+", "+tls.VersionName(version), func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				config := &tls.Config{GetCertificate: l.Upstream.ForHello, MaxVersion: version}
				config.WrapSession = func(cs tls.ConnectionState, ss *tls.SessionState) ([]byte, error) {
					ticket, err := config.EncryptTicket(cs, ss)
					return append(ticket, make([]byte, c.more)...), err
				}
				config.UnwrapSession = func(ticket []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
					return config.DecryptTicket(ticket[:max(0, len(ticket)-c.more)], cs)
				}
				var resumed, full atomic.Int32
				port := l.RawListen(config, func(c net.Conn, r *bufio.Reader) {
					for line := " "; len(line) > 0; line = strings.TrimSpace(line) {
						var err error
						if line, err = r.ReadString('\n'); err != nil {
							return
						}
					}
					if c.(*tls.Conn).ConnectionState().DidResume {
						resumed.Add(1)
					} else {
						full.Add(1)
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwire")
				})
				l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
				client := l.HTTPClient(port, false)
				for range 3 {
					if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 {
						t.Fatalf("%d %s", res.StatusCode, text)
					}
				}
				if (resumed.Load() > 0) != c.resumed || full.Load() == 0 {
					t.Errorf("%d handshakes were resumed, and %d full", resumed.Load(), full.Load())
				}
			})
		}
	}
}
