package ingress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/audit"
	"boxgate/internal/socket"
)

// BenchmarkKeepAlive measures a request with a bearer token and a response of 1 KiB, on reused connections, over HTTP/1.1 and
// HTTP/2. It includes the client and the application, which are in the same process.
func BenchmarkKeepAlive(b *testing.B) {
	for _, version := range []string{"http/1.1", "h2"} {
		b.Run(version, func(b *testing.B) { benchmarkKeepAlive(b, version) })
	}
}

func benchmarkKeepAlive(b *testing.B, version string) {
	f := start(b, func(c *Config) { c.Audit, c.RequestRate = audit.New(audit.Options{}), 1_000_000 })
	answer := []byte(strings.Repeat("x", 1024))
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
	b.Cleanup(app.Close)
	token := BearerDigest("token")
	f.expose("box1-8080", app, Auth{Bearer: &token})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: f.roots, ServerName: "box1-8080" + domain, NextProtos: []string{version}},
			ForceAttemptHTTP2: version == "h2",
		}}
		defer client.CloseIdleConnections()
		for pb.Next() {
			r, err := http.NewRequest(http.MethodGet, "https://"+f.https+"/", nil)
			if err != nil {
				b.Error(err)
				return
			}
			r.Host = "box1-8080" + domain
			r.Header.Set("Authorization", "Bearer token")
			resp, err := client.Do(r)
			if err != nil {
				b.Error(err)
				return
			}
			n, err := io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if err != nil || n != 1024 || resp.StatusCode != http.StatusOK {
				b.Errorf("%d, %d bytes, %v", resp.StatusCode, n, err)
				return
			}
		}
	})
}

// BenchmarkStreams is the same over 4 connections of HTTP/2 with 32 concurrent requests each. Client and application do
// little.
func BenchmarkStreams(b *testing.B) {
	const conns, streams = 4, 32
	f := start(b, func(c *Config) { c.Audit, c.RequestRate, c.Boxes = audit.New(audit.Options{}), 10_000_000, nil })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024))
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go answerAll(socket.NewDirect(c.(*net.TCPConn)), answer)
		}
	}()
	token := BearerDigest("token")
	f.set("box1-8080"+domain, Target{ID: "one", Box: "box1", Addr: netip.MustParseAddrPort(ln.Addr().String()), Auth: Auth{Bearer: &token}})
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range conns {
		all.Go(func() {
			if err := ask(f, streams, &left); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
}

// answerAll answers each request with the same response.
func answerAll(c net.Conn, answer []byte) {
	defer c.Close()
	buf := make([]byte, 4<<10)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// ask makes requests over one connection until the count is used up.
func ask(f *fixture, streams int, left *atomic.Int64) error {
	conn, err := net.Dial("tcp", f.https)
	if err != nil {
		return err
	}
	c := tls.Client(socket.NewDirect(conn.(*net.TCPConn)), &tls.Config{RootCAs: f.roots, ServerName: "box1-8080" + domain, NextProtos: []string{"h2"}})
	defer c.Close()
	w := bufio.NewWriterSize(c, 64<<10)
	r := bufio.NewReaderSize(c, 64<<10)
	framer := http2.NewFramer(w, r)
	framer.SetReuseFrames()
	_, _ = w.WriteString(http2.ClientPreface)
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = framer.WriteWindowUpdate(0, 1<<30)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	for _, f := range [][2]string{
		{":method", "GET"}, {":scheme", "https"}, {":authority", "box1-8080" + domain}, {":path", "/"}, {"authorization", "Bearer token"}, {"user-agent", "bench"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	open, id := 0, uint32(1)
	for {
		for ; open < streams && left.Add(-1) >= 0; open++ {
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
			id += 2
		}
		if err := w.Flush(); err != nil || open == 0 {
			return err
		}
		for before := open; open == before || r.Buffered() > 0; {
			frame, err := framer.ReadFrame()
			if err != nil {
				return err
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					_ = framer.WriteSettingsAck()
				}
			case *http2.DataFrame:
				if frame.StreamEnded() {
					open--
				}
			case *http2.RSTStreamFrame, *http2.GoAwayFrame:
				return fmt.Errorf("%v", frame)
			}
		}
	}
}
