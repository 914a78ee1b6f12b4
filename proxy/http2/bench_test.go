package http2_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// BenchmarkInterceptHTTP2 is one request through an intercepted HTTP/2 connection with an answer of 1 KiB, 32 at a time,
// HTTP/2 on both sides: without a body, and a unary call of gRPC. The raw client and upstream hardly allocate.
func BenchmarkInterceptHTTP2(b *testing.B) {
	b.Run("requests", func(b *testing.B) { benchmarkHTTP2(b, nil) })
	b.Run("unary", func(b *testing.B) { benchmarkHTTP2(b, make([]byte, 105)) })
}

func benchmarkHTTP2(b *testing.B, message []byte) {
	l := proxytest.New(b, proxytest.AllowAll, proxytest.Patient)
	port := l.RawServerALPN("h2", func(c net.Conn, r *bufio.Reader) { answerHTTP2(c, r, message != nil) })
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	l.With(func(c *proxy.Config) { c.Audit = proxytest.DiscardEvents{} })
	l.With(func(c *proxy.Config) { c.MaxRequests = 1 << 30 }) // of its one box
	c := l.DialPair(proxytest.API, port, true, "h2")
	_, _ = io.WriteString(c, http2.ClientPreface)
	var out, block bytes.Buffer
	w := http2.NewFramer(&out, nil)
	_ = w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	_ = w.WriteWindowUpdate(0, 1<<30)
	enc := hpack.NewEncoder(&block)
	method := "GET"
	if message != nil {
		method = "POST"
	}
	fields := []hpack.HeaderField{{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: proxytest.HostPort(port)}, {Name: ":path", Value: "/v1/models"}, {Name: "user-agent", Value: "bench"}, {Name: "accept", Value: "*/*"}}
	r := http2.NewFramer(nil, bufio.NewReaderSize(c, 64<<10))
	r.SetReuseFrames()
	id, open := uint32(1), 0
	b.ReportAllocs()
	b.ResetTimer()
	for sent, ended := 0, 0; ended < b.N; {
		for ; sent < b.N && open < 32; sent++ {
			block.Reset()
			for _, f := range fields {
				_ = enc.WriteField(f)
			}
			_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: message == nil, EndHeaders: true})
			if message != nil {
				_ = w.WriteData(id, true, message)
			}
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
		switch h := f.Header(); {
		case h.Type == http2.FrameRSTStream || h.Type == http2.FrameGoAway:
			b.Fatal(f)
		case h.Type <= http2.FrameHeaders && h.Flags.Has(http2.FlagDataEndStream):
			open--
			ended++
		}
	}
}

// answerHTTP2 is a server that answers each request, when it has ended, with 1 KiB, and trailers if asked to.
func answerHTTP2(c net.Conn, in *bufio.Reader, trailers bool) {
	if _, err := io.CopyN(io.Discard, in, int64(len(http2.ClientPreface))); err != nil {
		return
	}
	var out, head, trailer bytes.Buffer
	for _, f := range []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "server", Value: "bench", Sensitive: true}, {Name: "content-type", Value: "text/plain", Sensitive: true}, {Name: "date", Value: "Sun, 22 Nov 2026 15:00:00 GMT", Sensitive: true}} {
		_ = hpack.NewEncoder(&head).WriteField(f)
	}
	_ = hpack.NewEncoder(&trailer).WriteField(hpack.HeaderField{Name: "grpc-status", Value: "0", Sensitive: true})
	body := make([]byte, 1024)
	r, w := http2.NewFramer(nil, in), http2.NewFramer(&out, nil)
	r.SetReuseFrames()
	_ = w.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 250}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	_ = w.WriteWindowUpdate(0, 1<<30)
	for n := 0; ; n++ {
		f, err := r.ReadFrame()
		if err != nil {
			return
		}
		if h := f.Header(); h.Type <= http2.FrameHeaders && h.Flags.Has(http2.FlagDataEndStream) {
			_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: head.Bytes(), EndHeaders: true})
			_ = w.WriteData(h.StreamID, !trailers, body)
			if trailers {
				_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: trailer.Bytes(), EndHeaders: true, EndStream: true})
			}
			if n%1000 == 999 {
				_ = w.WriteWindowUpdate(0, 1<<20)
			}
		}
		if in.Buffered() == 0 && out.Len() > 0 {
			if _, err := c.Write(out.Bytes()); err != nil {
				return
			}
			out.Reset()
		}
	}
}
