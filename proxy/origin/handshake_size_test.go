package origin_test

import (
	"bufio"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/proxy/proxytest"
)

// TestAttackServersLongHandshakeMessages: the gateway abandons the handshake with a server that sends a certificate message of
// 192 KiB, which crypto/tls would buffer whole, or of 40 KiB. A chain of 24 KiB is accepted.
func TestAttackServersLongHandshakeMessages(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		more   int // certificates beside the server's own
		status int
	}{"as is usual": {0, 200}, "a long chain": {24 << 10, 200}, "too long": {40 << 10, 502}, "far too long": {192 << 10, 502}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			chain := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return longChain(l, hello, c.more) }
			port := l.RawListen(&tls.Config{GetCertificate: chain}, func(c net.Conn, r *bufio.Reader) {
				for line := " "; len(line) > 0; line = strings.TrimSpace(line) {
					var err error
					if line, err = r.ReadString('\n'); err != nil {
						return
					}
				}
				_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwire"))
			})
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			res, text := proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
			if res.StatusCode != c.status {
				t.Errorf("%d %s", res.StatusCode, text)
			}
		})
	}
}

// TestAttackUpstreamProxiesLongHandshakeMessages is the same for a proxy that connections go by.
func TestAttackUpstreamProxiesLongHandshakeMessages(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		more  int
		asked bool
	}{"a long chain": {24 << 10, true}, "too long": {192 << 10, false}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			chain := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return longChain(l, hello, c.more) }
			var asked atomic.Bool
			port := l.RawListen(&tls.Config{GetCertificate: chain}, func(_ net.Conn, r *bufio.Reader) {
				_, err := r.Peek(1)
				asked.Store(err == nil)
			})
			l.Rules(by("https://proxy.test:"+strconv.Itoa(int(port))), "{}")
			res, text := proxytest.Get(t, l.HTTPClient(port, false), "http://"+proxytest.HostPort(port)+"/", nil)
			if res.StatusCode != 502 || asked.Load() != c.asked {
				t.Errorf("the handshake was completed: %v; %d %s", asked.Load(), res.StatusCode, text)
			}
		})
	}
}
