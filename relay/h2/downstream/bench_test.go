package downstream

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/memory"
	"boxgate/relay/h2"
)

//lint:file-ignore SA1019 the deprecated server is what ours is compared with

// BenchmarkServe is one request without a body and an answer of 1 KiB, 32 at a time on one connection, by our server and
// golang.org/x/net/http2's.
func BenchmarkServe(b *testing.B) {
	body := make([]byte, 1024)
	b.Run("ours", func(b *testing.B) {
		benchmark(b, func(nc net.Conn) {
			Serve(b.Context(), nc, Config{
				Handler: func(s *Stream) {
					_ = s.WriteHeader(200, []hpack.HeaderField{{Name: "content-type", Value: "text/plain"}, {Name: "content-length", Value: "1024"}}, false)
					_, _ = s.Write(body)
					_ = s.CloseWrite(nil)
				},
				Refused: func(Refusal) {}, Panicked: func(any) {}, Memory: memory.New(1<<30, 1<<30).Account("box"), Idle: time.Minute,
			})
		})
	})
	b.Run("library", func(b *testing.B) {
		benchmark(b, func(nc net.Conn) {
			(&http2.Server{MaxConcurrentStreams: h2.Streams, MaxReadFrameSize: h2.FrameMax}).ServeConn(nc, &http2.ServeConnOpts{
				Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header()["Date"] = nil
					w.Header().Set("Content-Type", "text/plain")
					w.Header().Set("Content-Length", "1024")
					_, _ = w.Write(body)
				}),
			})
		})
	})
}

func benchmark(b *testing.B, serve func(net.Conn)) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := ln.Accept(); err == nil {
			serve(c)
		}
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close(); <-done }()
	_, _ = io.WriteString(c, http2.ClientPreface)
	var out, block bytes.Buffer
	w := http2.NewFramer(&out, nil)
	_ = w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	_ = w.WriteWindowUpdate(0, 1<<30)
	enc := hpack.NewEncoder(&block)
	r := http2.NewFramer(nil, c)
	r.SetReuseFrames()
	id, open := uint32(1), 0
	b.ReportAllocs()
	for sent, ended := 0, 0; ended < b.N; {
		for ; sent < b.N && open < 32; sent++ {
			block.Reset()
			for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "example.com"}, {":path", "/v1/models"}, {"user-agent", "bench"}, {"accept", "*/*"}} {
				_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
			}
			_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
			id += 2
			open++
			if sent%1000 == 999 {
				_ = w.WriteWindowUpdate(0, 1<<20)
			}
		}
		if out.Len() > 0 {
			if _, err := c.Write(out.Bytes()); err != nil {
				b.Fatal(err)
			}
			out.Reset()
		}
		f, err := r.ReadFrame()
		if err != nil {
			b.Fatal(err)
		}
		if h := f.Header(); h.Type <= http2.FrameHeaders && h.Flags.Has(http2.FlagDataEndStream) {
			open--
			ended++
		}
	}
}
