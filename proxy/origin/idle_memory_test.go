package origin_test

import (
	"bufio"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"

	"boxgate/internal/memory"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// TestIdleConnectionsToServersAreChargedForWhatTheyHold: an HTTP/1.1 connection is charged for the largest handshake until it is
// complete, then for the memory in use during a request, and for the kept memory while it is idle.
func TestIdleConnectionsToServersAreChargedForWhatTheyHold(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		more           int // bytes of certificates beside the server's own
		inUse, atLeast int64
		idle           int64
	}{
		"as is usual":  {0, 120 << 10, 120 << 10, 40 << 10},
		"a long chain": {24 << 10, 200 << 10, 180 << 10, 180 << 10},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			budget := memory.New(64<<20, 64<<20)
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Memory = budget })
			shakes, goOn := make(chan chan struct{}), make(chan struct{})
			cfg := &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				wait := make(chan struct{})
				shakes <- wait
				<-wait
				return longChain(l, hello, c.more)
			}}
			asked := make(chan struct{})
			port := l.RawListen(cfg, func(c net.Conn, r *bufio.Reader) {
				for {
					for line := " "; len(line) > 0; line = strings.TrimSpace(line) {
						var err error
						if line, err = r.ReadString('\n'); err != nil {
							return
						}
					}
					asked <- struct{}{}
					<-goOn
					_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwire"))
				}
			})
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			client := l.HTTPClient(port, false)
			held := func() int64 { return budget.InUse(memory.Upstreams) }
			for n := range 3 {
				done := make(chan string, 1)
				go func() {
					_, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil)
					done <- text
				}()
				if n == 0 {
					wait := <-shakes
					if got := held(); got != 180<<10 {
						t.Errorf("%d bytes are charged for a handshake", got)
					}
					close(wait)
				}
				<-asked
				if got := held(); got > c.inUse || got < c.atLeast {
					t.Errorf("%d bytes are charged for a connection in use, not %d to %d", got, c.atLeast, c.inUse)
				}
				goOn <- struct{}{}
				if text := <-done; text != "wire" {
					t.Errorf("%q", text)
				}
				client.CloseIdleConnections()
				proxytest.Await(t, "the connection to rest", func() bool { return held() <= c.idle })
				if held() < 20<<10 {
					t.Errorf("%d bytes are charged for an idle connection", held())
				}
			}
			l.Proxy.CloseBox(l.Box.ID)
			proxytest.Await(t, "every claim to be given back", func() bool { return held() == 0 })
		})
	}
}

// longChain returns a certificate of the rig's for a client, with so many bytes more.
func longChain(l *proxytest.Rig, hello *tls.ClientHelloInfo, more int) (*tls.Certificate, error) {
	cert, err := l.Upstream.ForHello(hello)
	if err != nil {
		return nil, err
	}
	long := *cert
	long.Certificate = slices.Clone(cert.Certificate)
	for n := 0; n < more; n += len(cert.Certificate[0]) {
		long.Certificate = append(long.Certificate, cert.Certificate[0])
	}
	return &long, nil
}
