package proxy_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// BenchmarkIntercept is one request of 1 KiB through an intercepted keep-alive connection: client, proxy and upstream in
// one process. Client and upstream are raw, so most of the time is spent in the proxy and in TLS.
func BenchmarkIntercept(b *testing.B) {
	l := proxytest.New(b, proxytest.AllowAll, proxytest.Patient)
	body := strings.Repeat("x", 1024)
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n" + body)
		for {
			for {
				line, err := r.ReadSlice('\n')
				if err != nil {
					return
				}
				if len(line) == 2 {
					break
				}
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	l.With(func(c *proxy.Config) { c.Audit = proxytest.DiscardEvents{} })
	l.With(func(c *proxy.Config) { c.MaxRequests = 1 << 30 }) // of its one box
	request := []byte("GET /v1/models HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
	exchange := func(b testing.TB, c net.Conn, buf []byte) {
		if _, err := c.Write(request); err != nil {
			b.Fatal(err)
		}
		for n := 0; n < 1024; {
			m, err := c.Read(buf)
			if err != nil {
				b.Fatal(err)
			}
			n += m
		}
	}
	b.Run("h1", func(b *testing.B) {
		c := l.DialPair(proxytest.API, port, true)
		buf := make([]byte, 4096)
		b.ReportAllocs()
		for b.Loop() {
			exchange(b, c, buf)
		}
	})
	b.Run("h1 new connections", func(b *testing.B) { newConnections(l, b, port, exchange, nil) })
	b.Run("h1 resumed connections", func(b *testing.B) {
		newConnections(l, b, port, exchange, tls.NewLRUClientSessionCache(1))
	})
	b.Run("h1 parallel", func(b *testing.B) {
		b.SetParallelism(16)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			c := l.DialPair(proxytest.API, port, true)
			buf := make([]byte, 4096)
			for pb.Next() {
				exchange(b, c, buf)
			}
		})
	})
	b.Run("h2", func(b *testing.B) {
		_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, body) })
		l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
		client := l.HTTPClient(port, true)
		b.SetParallelism(16)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				res, err := client.Get("https://" + proxytest.HostPort(port) + "/")
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
	})
}

// newConnections makes a connection for each request.
func newConnections(r *proxytest.Rig, b *testing.B, port uint16, exchange func(testing.TB, net.Conn, []byte), sessions tls.ClientSessionCache) {
	r.With(func(c *proxy.Config) { c.MaxNewConns = 1 << 30 })
	conf := &tls.Config{
		ServerName: proxytest.API, RootCAs: r.BoxCA.Pool(), NextProtos: []string{"http/1.1"}, ClientSessionCache: sessions,
		CurvePreferences: []tls.CurveID{tls.X25519},
	}
	r.Names.SetOthers(proxytest.Loopback)
	front := r.Front(netip.AddrPortFrom(r.Orig, port))
	b.ReportAllocs()
	before := cpuTime(b)
	b.SetParallelism(4)
	b.RunParallel(func(pb *testing.PB) {
		buf := make([]byte, 4096)
		from := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.Box.V4, 0))}
		for pb.Next() {
			raw, err := from.Dial("tcp", front)
			if err != nil {
				b.Fatal(err)
			}
			c := tls.Client(raw, conf)
			exchange(b, c, buf)
			_ = c.Close()
		}
	})
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// cpuTime returns the CPU time of this process in nanoseconds.
func cpuTime(b *testing.B) int64 {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}
