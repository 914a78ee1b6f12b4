package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkIntercept is one request of 1 KiB through an intercepted connection kept alive: client, proxy and upstream in
// one process. The raw client and upstream leave most of the time to the proxy and to TLS.
func BenchmarkIntercept(b *testing.B) {
	l := newRig(b, allowAll, patient)
	body := strings.Repeat("x", 1024)
	port := l.rawServer(true, func(c net.Conn, r *bufio.Reader) {
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
	l.policy(allowAll, secretFor(api, port))
	l.with(func(c *Config) { c.Audit = discardEvents{} })
	l.with(func(c *Config) { c.MaxRequests = 1 << 30 }) // of its one box
	request := []byte("GET /v1/models HTTP/1.1\r\nHost: " + hostPort(port) + "\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
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
		c := l.dialPair(api, port, true)
		buf := make([]byte, 4096)
		b.ReportAllocs()
		for b.Loop() {
			exchange(b, c, buf)
		}
	})
	b.Run("h1 parallel", func(b *testing.B) {
		b.SetParallelism(16)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			c := l.dialPair(api, port, true)
			buf := make([]byte, 4096)
			for pb.Next() {
				exchange(b, c, buf)
			}
		})
	})
	b.Run("h2", func(b *testing.B) {
		_, port := l.httpsServer(true, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, body) })
		l.policy(allowAll, secretFor(api, port))
		client := l.httpClient(port, true)
		b.SetParallelism(16)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				res, err := client.Get("https://" + hostPort(port) + "/")
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
	})
}
