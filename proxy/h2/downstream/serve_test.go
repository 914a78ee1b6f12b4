package downstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/proxy/h2"
)

// fields of a response or trailers; names and values in turn.
func fields(text ...string) (list []hpack.HeaderField) {
	for i := 0; i < len(text); i += 2 {
		list = append(list, hpack.HeaderField{Name: text[i], Value: text[i+1]})
	}
	return list
}

// hello answers every request.
func hello(s *Stream) {
	_ = s.WriteHeader(200, nil, false)
	_, _ = io.WriteString(s, "hello")
	_ = s.CloseWrite(nil)
}

// echo answers with the body and the trailers of the request.
func echo(s *Stream) {
	_ = s.WriteHeader(200, nil, false)
	buf := make([]byte, 1000)
	for {
		n, err := s.Read(buf)
		if _, failed := s.Write(buf[:n]); failed != nil {
			return
		}
		_ = s.Flush()
		if errors.Is(err, io.EOF) {
			_ = s.CloseWrite(s.Trailers())
			return
		}
		if err != nil {
			return
		}
	}
}

// TestOneWriteForAResponse: head, content and end leave together, as one DATA frame that ends the stream.
func TestOneWriteForAResponse(t *testing.T) {
	served(t, hello, func(p *peer) {
		before := p.writes
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		if n := p.writes - before; n != 1 {
			t.Errorf("%d writes", n)
		}
	})
}

// TestMalformedRequests sends requests that break RFC 9113, 8.1 to 8.3, each beside one that does not: the stream is
// reset, one refusal is told, and the HPACK state stays what the client thinks it is.
func TestMalformedRequests(t *testing.T) {
	with := func(more ...string) []string { return get(more...) }
	without := func(name string) (rest []string) {
		for i := 0; i < 8; i += 2 {
			if all := get(); all[i] != name {
				rest = append(rest, all[i:i+2]...)
			}
		}
		return rest
	}
	for name, head := range map[string][]string{
		"no method": without(":method"), "no scheme": without(":scheme"), "no path": without(":path"),
		"another scheme": append(without(":scheme"), ":scheme", "ftp"), "an empty path": append(without(":path"), ":path", ""),
		"a path of words": append(without(":path"), ":path", "x"), "a path twice": with(":path", "/other"),
		"a response": append([]string{":status", "200"}, get()...), "an unknown pseudo-header": with(":other", "x"),
		"a pseudo-header too late": append([]string{"x", "y"}, get()...),
		"CR LF in a value":         with("x", "y\r\nz: w"), "NUL in a value": with("x", "y\x00z"), "DEL in a value": with("x", "y\x7f"),
		"a capital letter": with("X-Key", "y"), "a space in a name": with("x y", "z"), "an empty name": with("", "z"), "a colon in a name": with("x:", "z"),
		"CR in a name": with("x\r", "z"), "connection": with("connection", "close"), "proxy-connection": with("proxy-connection", "keep-alive"),
		"keep-alive": with("keep-alive", "timeout=5"), "transfer-encoding": with("transfer-encoding", "chunked"), "upgrade": with("upgrade", "h2c"),
		"te": with("te", "gzip"), "te and more": with("te", "trailers, deflate"),
		"another Host": with("host", "evil.example.com"), "two Hosts": with("host", "example.com", "host", "example.com"),
		"a user": append(without(":authority"), ":authority", "user@example.com"), "spaces in the authority": append(without(":authority"), ":authority", "a b"),
		"CONNECT with a path": {":method", "CONNECT", ":authority", "example.com:443", ":path", "/"}, "CONNECT to nowhere": {":method", "CONNECT"},
		"extended CONNECT without a path": {":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			reached := 0
			served(t, func(s *Stream) { reached++; hello(s) }, func(p *peer) {
				for id := uint32(1); id < 12; id += 4 {
					p.ask(id, id > 1, head...)
					p.expect(fmt.Sprintf("%d RST_STREAM PROTOCOL_ERROR", id))
					if id == 1 { // what was on its way is ignored
						_ = p.framer.WriteData(1, false, []byte("x"))
						p.ask(1, true, "x-trailer", "y")
						p.expect()
					}
					if len(p.refused) != 1 || !strings.Contains(p.refused[0].Why, "PROTOCOL_ERROR: ") {
						t.Errorf("%v", p.refused)
					}
					p.refused = nil
					p.ask(id+2, true, get("x-before", "1")...)
					p.expect(fmt.Sprintf("%d HEADERS :status=200", id+2), fmt.Sprintf("%d DATA hello end", id+2))
				}
				if reached != 3 {
					t.Errorf("%d requests reached the handler", reached)
				}
			})
		})
	}
}

// TestEndsOfConnections breaks what concerns the whole connection (RFC 9113, 5.4.1).
func TestEndsOfConnections(t *testing.T) {
	raw := func(kind http2.FrameType, flags http2.Flags, stream uint32, payload string) func(*peer) {
		return func(p *peer) { _ = p.framer.WriteRawFrame(kind, flags, stream, []byte(payload)) }
	}
	for name, tt := range map[string]struct {
		send func(*peer)
		code http2.ErrCode
	}{
		"a long frame":                    {raw(http2.FrameData, 0, 1, strings.Repeat("x", h2.FrameMax+1)), http2.ErrCodeFrameSize},
		"HEADERS of stream 0":             {raw(http2.FrameHeaders, 4, 0, ""), http2.ErrCodeProtocol},
		"HEADERS of an even stream":       {raw(http2.FrameHeaders, 4, 2, ""), http2.ErrCodeProtocol},
		"HEADERS with too much padding":   {raw(http2.FrameHeaders, 4|8, 1, "\x09\x82"), http2.ErrCodeProtocol},
		"HEADERS without their priority":  {raw(http2.FrameHeaders, 4|0x20, 1, "\x82"), http2.ErrCodeFrameSize},
		"HEADERS without their padding":   {raw(http2.FrameHeaders, 4|8, 1, ""), http2.ErrCodeFrameSize},
		"HPACK beyond its table":          {raw(http2.FrameHeaders, 4, 1, "\xff\xff\x03"), http2.ErrCodeCompression},
		"HPACK that breaks off":           {raw(http2.FrameHeaders, 4, 1, "\x40"), http2.ErrCodeCompression},
		"another frame in a header block": {func(p *peer) { raw(http2.FrameHeaders, 0, 1, "\x82")(p); raw(http2.FramePing, 0, 0, "12345678")(p) }, http2.ErrCodeProtocol},
		"CONTINUATION of another stream":  {func(p *peer) { raw(http2.FrameHeaders, 0, 1, "\x82")(p); raw(http2.FrameContinuation, 4, 3, "")(p) }, http2.ErrCodeProtocol},
		"CONTINUATION of nothing":         {raw(http2.FrameContinuation, 4, 1, ""), http2.ErrCodeProtocol},
		"CONTINUATION without end": {func(p *peer) {
			raw(http2.FrameHeaders, 0, 1, "")(p)
			for range 33 {
				raw(http2.FrameContinuation, 0, 1, "")(p)
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"a stream number twice":           {func(p *peer) { p.ask(5, true, get()...); p.ask(3, true, get()...) }, http2.ErrCodeProtocol},
		"DATA of stream 0":                {raw(http2.FrameData, 0, 0, "x"), http2.ErrCodeProtocol},
		"DATA of no stream":               {raw(http2.FrameData, 0, 1, "x"), http2.ErrCodeProtocol},
		"DATA with too much padding":      {func(p *peer) { p.ask(1, false, get()...); raw(http2.FrameData, 8, 1, "\x05x")(p) }, http2.ErrCodeProtocol},
		"DATA without its padding":        {func(p *peer) { p.ask(1, false, get()...); raw(http2.FrameData, 8, 1, "")(p) }, http2.ErrCodeFrameSize},
		"DATA beyond the connection":      {func(p *peer) { tooMuchData(p) }, http2.ErrCodeFlowControl},
		"PRIORITY of stream 0":            {raw(http2.FramePriority, 0, 0, "12345"), http2.ErrCodeProtocol},
		"PRIORITY of another length":      {raw(http2.FramePriority, 0, 1, "1234"), http2.ErrCodeFrameSize},
		"RST_STREAM of stream 0":          {raw(http2.FrameRSTStream, 0, 0, "\x00\x00\x00\x08"), http2.ErrCodeProtocol},
		"RST_STREAM of no stream":         {raw(http2.FrameRSTStream, 0, 1, "\x00\x00\x00\x08"), http2.ErrCodeProtocol},
		"RST_STREAM of another length":    {raw(http2.FrameRSTStream, 0, 1, "\x00"), http2.ErrCodeFrameSize},
		"SETTINGS of a stream":            {raw(http2.FrameSettings, 0, 1, ""), http2.ErrCodeProtocol},
		"SETTINGS of another length":      {raw(http2.FrameSettings, 0, 0, "12345"), http2.ErrCodeFrameSize},
		"SETTINGS acknowledged with some": {raw(http2.FrameSettings, 1, 0, "123456"), http2.ErrCodeFrameSize},
		"SETTINGS acknowledged twice":     {raw(http2.FrameSettings, 1, 0, ""), http2.ErrCodeProtocol},
		"too many settings":               {raw(http2.FrameSettings, 0, 0, strings.Repeat("\x00\x03\x00\x00\x00\x01", 101)), http2.ErrCodeProtocol},
		"a fault that is repeated":        {raw(http2.FrameSettings, 0, 0, "\x00\x04\x80\x00\x00\x00\x00\x04\x00\x00\x00\x01"), http2.ErrCodeFlowControl},
		"ENABLE_PUSH of 2":                {raw(http2.FrameSettings, 0, 0, "\x00\x02\x00\x00\x00\x02"), http2.ErrCodeProtocol},
		"small frames":                    {raw(http2.FrameSettings, 0, 0, "\x00\x05\x00\x00\x00\x01"), http2.ErrCodeProtocol},
		"a window that grows beyond": {func(p *peer) {
			p.ask(1, false, get()...)
			_ = p.framer.WriteWindowUpdate(1, 1<<30)
			raw(http2.FrameSettings, 0, 0, "\x00\x04\x7f\xff\xff\xff")(p)
		}, http2.ErrCodeFlowControl},
		"PUSH_PROMISE":                     {raw(http2.FramePushPromise, 4, 1, "\x00\x00\x00\x02"), http2.ErrCodeProtocol},
		"PING of a stream":                 {raw(http2.FramePing, 0, 1, "12345678"), http2.ErrCodeProtocol},
		"PING of another length":           {raw(http2.FramePing, 0, 0, "1234567"), http2.ErrCodeFrameSize},
		"GOAWAY of a stream":               {raw(http2.FrameGoAway, 0, 1, "12345678"), http2.ErrCodeProtocol},
		"GOAWAY of another length":         {raw(http2.FrameGoAway, 0, 0, "1234567"), http2.ErrCodeFrameSize},
		"WINDOW_UPDATE of another length":  {raw(http2.FrameWindowUpdate, 0, 0, "123"), http2.ErrCodeFrameSize},
		"WINDOW_UPDATE of nothing":         {raw(http2.FrameWindowUpdate, 0, 0, "\x00\x00\x00\x00"), http2.ErrCodeProtocol},
		"WINDOW_UPDATE of no stream":       {raw(http2.FrameWindowUpdate, 0, 1, "\x00\x00\x00\x01"), http2.ErrCodeProtocol},
		"WINDOW_UPDATE beyond the largest": {raw(http2.FrameWindowUpdate, 0, 0, "\x7f\xff\xff\xff"), http2.ErrCodeFlowControl},
		"a head without end": {func(p *peer) {
			for id := uint32(1); id < 3; id += 2 {
				headWithoutEnd(p)
			}
		}, http2.ErrCodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			served(t, func(s *Stream) { <-s.Context().Done() }, func(p *peer) {
				tt.send(p)
				got := p.frames()
				if len(got) == 0 || !strings.HasSuffix(got[len(got)-1], " "+tt.code.String()) || !strings.HasPrefix(got[len(got)-1], "GOAWAY ") {
					t.Errorf("%q, want %v", got, tt.code)
				}
				p.expectRefused("the connection is ended with " + tt.code.String())
				time.Sleep(goAwayTime)
				synctest.Wait()
				if !p.ended {
					t.Error("the connection goes on")
				}
			})
		})
	}
}

// tooMuchData fills the windows of as many streams as the connection's has room for, and more.
func tooMuchData(p *peer) {
	for id := uint32(1); id <= 2*(ConnWindow/StreamWindow)+1; id += 2 {
		p.ask(id, false, get()...)
		for range StreamWindow / h2.FrameMax {
			_ = p.framer.WriteData(id, false, make([]byte, h2.FrameMax))
		}
	}
}

// headWithoutEnd sends a head larger than is read, in a block that goes on.
func headWithoutEnd(p *peer) {
	block := p.encode(get("x", strings.Repeat("y", 100<<10), "z", strings.Repeat("y", 100<<10), "w", "v")...)
	_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10]})
	for block = block[16<<10:]; len(block) > 0; block = block[min(len(block), 16<<10):] {
		_ = p.framer.WriteContinuation(1, false, block[:min(len(block), 16<<10)])
	}
	_ = p.framer.WriteContinuation(1, true, nil)
}

// TestEndsOfStreams breaks what concerns one stream: others go on (5.4.2).
func TestEndsOfStreams(t *testing.T) {
	post := get()
	for name, tt := range map[string]struct {
		send func(*peer)
		want string
	}{
		"DATA behind the end":    {func(p *peer) { p.ask(1, true, get()...); _ = p.framer.WriteData(1, true, []byte("x")) }, "STREAM_CLOSED"},
		"HEADERS behind the end": {func(p *peer) { p.ask(1, true, get()...); p.ask(1, true, "x", "y") }, "STREAM_CLOSED"},
		"trailers without end":   {func(p *peer) { p.ask(1, false, post...); p.ask(1, false, "x", "y") }, "PROTOCOL_ERROR"},
		"trailers with a status": {func(p *peer) { p.ask(1, false, post...); p.ask(1, true, ":status", "200") }, "PROTOCOL_ERROR"},
		"trailers with a path":   {func(p *peer) { p.ask(1, false, post...); p.ask(1, true, ":path", "/") }, "PROTOCOL_ERROR"},
		"trailers with capitals": {func(p *peer) { p.ask(1, false, post...); p.ask(1, true, "X", "y") }, "PROTOCOL_ERROR"},
		"trailers that frame":    {func(p *peer) { p.ask(1, false, post...); p.ask(1, true, "content-length", "1") }, "PROTOCOL_ERROR"},
		"trailers too large": {func(p *peer) {
			p.ask(1, false, post...)
			p.ask(1, true, "x", strings.Repeat("y", headMax-3000), "z", strings.Repeat("y", 4000))
		}, "PROTOCOL_ERROR"},
		"more than declared": {func(p *peer) {
			p.ask(1, false, get("content-length", "1")...)
			_ = p.framer.WriteData(1, false, []byte("xy"))
		}, "PROTOCOL_ERROR"},
		"less than declared": {func(p *peer) {
			p.ask(1, false, get("content-length", "3")...)
			_ = p.framer.WriteData(1, true, []byte("xy"))
		}, "PROTOCOL_ERROR"},
		"trailers before the content": {func(p *peer) { p.ask(1, false, get("content-length", "3")...); p.ask(1, true, "x", "y") }, "PROTOCOL_ERROR"},
		"a length that makes no sense": {func(p *peer) {
			p.ask(1, false, get("content-length", "x")...)
			_ = p.framer.WriteData(1, false, []byte("xy"))
		}, "PROTOCOL_ERROR"},
		"a window of nothing more": {func(p *peer) {
			p.ask(1, false, post...)
			_ = p.framer.WriteRawFrame(http2.FrameWindowUpdate, 0, 1, make([]byte, 4))
		}, "PROTOCOL_ERROR"},
		"a window too large": {func(p *peer) { p.ask(1, false, post...); _ = p.framer.WriteWindowUpdate(1, 1<<31-1) }, "FLOW_CONTROL_ERROR"},
		"DATA beyond the window": {func(p *peer) {
			p.ask(1, false, post...)
			for range StreamWindow/h2.FrameMax + 1 {
				_ = p.framer.WriteData(1, false, make([]byte, h2.FrameMax))
			}
		}, "FLOW_CONTROL_ERROR"},
		"a stream below itself": {func(p *peer) {
			p.ask(1, false, post...)
			_ = p.framer.WritePriority(1, http2.PriorityParam{StreamDep: 1})
		}, "PROTOCOL_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			failed := make(chan error, 1)
			served(t, func(s *Stream) {
				if s.Path == "/other" {
					hello(s)
					return
				}
				<-s.Context().Done()
				for err := error(nil); err == nil; {
					if _, err = s.Read(make([]byte, 1000)); err != nil {
						failed <- err
					}
				}
				if _, err := s.Write([]byte("x")); err == nil {
					t.Error("it can still be written to")
				}
			}, func(p *peer) {
				tt.send(p)
				p.expect("1 RST_STREAM " + tt.want)
				_ = p.framer.WriteData(1, true, []byte("on its way"))
				p.expect()
				if err := <-failed; errors.Is(err, io.EOF) {
					t.Error("the body seems complete")
				}
				p.expectRefused() // the handler knows
				p.ask(3, true, append(get()[:6], ":path", "/other")...)
				p.expect("3 HEADERS :status=200", "3 DATA hello end")
			})
		})
	}
}

// TestClosedStreams sends frames to streams that have ended (5.1).
func TestClosedStreams(t *testing.T) {
	served(t, hello, func(p *peer) {
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		_ = p.framer.WriteWindowUpdate(1, 1)
		_ = p.framer.WriteRSTStream(1, http2.ErrCodeCancel)
		_ = p.framer.WritePriority(1, http2.PriorityParam{StreamDep: 3})
		p.expect()
		_ = p.framer.WriteData(1, false, []byte("x"))
		p.expect("1 RST_STREAM STREAM_CLOSED")
		p.ask(3, false, get()...) // the answer does not wait for the body
		p.expect("3 HEADERS :status=200", "3 DATA hello end", "3 RST_STREAM NO_ERROR")
		_ = p.framer.WriteData(3, true, []byte("x"))
		p.expect()
		p.expectRefused()
	})
}

// TestMoreStreamsThanAllowed opens more requests at a time than the SETTINGS allow: they are refused, and told of, and may
// be repeated once others have ended.
func TestMoreStreamsThanAllowed(t *testing.T) {
	served(t, func(s *Stream) { time.Sleep(time.Second); hello(s) }, func(p *peer) {
		for id := uint32(1); id < 2*h2.Streams; id += 2 {
			p.ask(id, true, get()...)
		}
		p.ask(2*h2.Streams+1, true, get()...)
		p.expect(fmt.Sprintf("%d RST_STREAM REFUSED_STREAM", 2*h2.Streams+1))
		p.expectRefused("the stream is reset with REFUSED_STREAM: more requests at a time than allowed")
		time.Sleep(time.Second)
		if n := ends(p.frames()); n != h2.Streams {
			t.Errorf("%d responses", n)
		}
		p.ask(2*h2.Streams+3, true, get()...)
		time.Sleep(time.Second)
		p.expect(fmt.Sprintf("%d HEADERS :status=200", 2*h2.Streams+3), fmt.Sprintf("%d DATA hello end", 2*h2.Streams+3))
	})
}

// TestRapidReset opens and resets requests whose handlers take their time (CVE-2023-44487): no more handlers run than
// streams are allowed, and the connection ends.
func TestRapidReset(t *testing.T) {
	var running atomic.Int32
	served(t, func(*Stream) {
		running.Add(1)
		time.Sleep(time.Hour)
	}, func(p *peer) {
		id := uint32(1)
		for range h2.Streams + waitingMax + 1 {
			p.ask(id, true, get()...)
			_ = p.framer.WriteRSTStream(id, http2.ErrCodeCancel)
			synctest.Wait()
			id += 2
		}
		p.expect(fmt.Sprintf("GOAWAY %d ENHANCE_YOUR_CALM", id-2))
		if len(p.refused) != waitingMax+1 { // and one for the connection
			t.Errorf("%d refusals", len(p.refused))
		}
		if n := running.Load(); n != h2.Streams {
			t.Errorf("%d handlers at a time", n)
		}
		time.Sleep(time.Hour)
	})
}

// TestFloods sends frames that ask for nothing, in any number.
func TestFloods(t *testing.T) {
	for name, send := range map[string]func(p *peer) error{
		"SETTINGS": func(p *peer) error {
			return p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		},
		"PING":          func(p *peer) error { return p.framer.WritePing(false, [8]byte{}) },
		"PRIORITY":      func(p *peer) error { return p.framer.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
		"WINDOW_UPDATE": func(p *peer) error { return p.framer.WriteWindowUpdate(0, 1) },
		"RST_STREAM":    func(p *peer) error { return p.framer.WriteRSTStream(1, http2.ErrCodeCancel) },
		"unknown":       func(p *peer) error { return p.framer.WriteRawFrame(0xbe, 0, 0, nil) },
		"DATA":          func(p *peer) error { return p.framer.WriteData(3, false, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			served(t, func(s *Stream) { <-s.Context().Done() }, func(p *peer) {
				p.ask(1, true, get()...)
				p.ask(3, false, get()...)
				for range 20_000 {
					if send(p) != nil {
						break
					}
				}
				// Which of the two limits is met first is up to the scheduler.
				got := p.frames()
				if len(p.refused) != 1 || !p.refused[0].Flood && (p.refused[0].Why != "the connection is ended with ENHANCE_YOUR_CALM" ||
					got[len(got)-1] != "GOAWAY 3 ENHANCE_YOUR_CALM") {
					t.Errorf("%v %.200q", p.refused, got)
				}
			})
		})
	}
}

// TestWindowsOfAFastDownload answers each 2 KiB with two WINDOW_UPDATE frames, as Go's client does: that is no flood.
func TestWindowsOfAFastDownload(t *testing.T) {
	const size = 24 << 20
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, nil, false)
		_, _ = s.Write(make([]byte, size))
		_ = s.CloseWrite(nil)
	}, func(p *peer) {
		p.ask(1, true, get()...)
		for i := range size / (2 << 10) {
			if i%16 == 0 {
				synctest.Wait()
			}
			if p.framer.WriteWindowUpdate(1, 2<<10) != nil || p.framer.WriteWindowUpdate(0, 2<<10) != nil {
				t.Fatal("the connection was ended")
			}
		}
		got := p.frames()
		if last := got[len(got)-1]; !strings.HasSuffix(last, " end") {
			t.Error(last)
		}
	})
}

// TestClientThatDoesNotRead asks for answers to its frames and reads none: what waits for it is bounded, and the
// connection ends.
func TestClientThatDoesNotRead(t *testing.T) {
	for name, send := range map[string]func(p *peer, id uint32){
		"PING":      func(p *peer, _ uint32) { _ = p.framer.WritePing(false, [8]byte{}) },
		"malformed": func(p *peer, id uint32) { p.ask(id, true, ":method", "GET") },
		"SETTINGS":  func(p *peer, _ uint32) { _ = p.framer.WriteSettings() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := deaf(t, hello)
				for id := uint32(1); id < 2*controlMax+100; id += 2 {
					send(p, id)
				}
				synctest.Wait()
				if !p.ended {
					t.Error("the connection goes on")
				}
				if n := len(p.refused); n == 0 || !p.refused[n-1].Flood {
					t.Errorf("%d refusals, none of a flood", n)
				}
			})
		})
	}
}

// deaf is a client that reads nothing.
func deaf(t *testing.T, handler func(*Stream)) *peer {
	p := unserved(t)
	p.serve(handler)
	p.greet()
	p.frames()
	_ = p.conn.SetReadDeadline(time.Now()) // ends its reader
	synctest.Wait()
	return p
}

// TestResponsesNobodyReads: handlers wait for their client, and the connection holds little more than a batch.
func TestResponsesNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var returned atomic.Int32
		var first atomic.Pointer[Stream]
		p := deaf(t, func(s *Stream) {
			first.Store(s)
			_ = s.WriteHeader(200, fields("x", strings.Repeat("y", 60<<10)), false)
			_, _ = s.Write(make([]byte, 1<<20))
			_ = s.CloseWrite(nil)
			returned.Add(1)
		})
		_ = p.framer.WriteWindowUpdate(0, 1<<30)
		for id := uint32(1); id < 2*h2.Streams; id += 2 {
			p.ask(id, true, get()...)
		}
		synctest.Wait()
		if n := returned.Load(); n != 0 {
			t.Errorf("%d handlers wrote all they had", n)
		}
		if n := len(first.Load().c.out.pending); n > batchMax+64<<10 {
			t.Errorf("%d bytes wait for a client that does not read", n)
		}
		p.leave()
		if n := returned.Load(); n != h2.Streams {
			t.Errorf("%d handlers ended with the connection", n)
		}
	})
}

// TestWindows: DATA follows the client's windows, which may change at any time and become negative (6.9).
func TestWindows(t *testing.T) {
	first := func(n uint32) http2.Setting { return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n} }
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, nil, false)
		_, _ = io.WriteString(s, "0123456789")
		_ = s.CloseWrite(nil)
	}, func(p *peer) {
		_ = p.framer.WriteSettings(first(9), first(3)) // a setting twice: the last one counts
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=200", "1 DATA 012")
		_ = p.framer.WriteSettings(first(4))
		p.expect("1 DATA 3")
		_ = p.framer.WriteSettings(first(1))
		_ = p.framer.WriteWindowUpdate(1, 3)
		p.expect()
		_ = p.framer.WriteWindowUpdate(1, 1)
		p.expect("1 DATA 4")
		_ = p.framer.WriteWindowUpdate(1, 100)
		p.expect("1 DATA 56789 end")
	})
}

// TestConnectionWindowIsShared: what the client lets us send on the connection goes to all streams in turn.
func TestConnectionWindowIsShared(t *testing.T) {
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, nil, false)
		_, _ = s.Write(make([]byte, 40<<10))
		_ = s.CloseWrite(nil)
	}, func(p *peer) {
		for id := uint32(1); id < 20; id += 2 {
			p.ask(id, true, get()...)
		}
		ended := ends(p.frames())
		for range 10 * 40 {
			_ = p.framer.WriteWindowUpdate(0, 1<<10)
			synctest.Wait()
		}
		if ended += ends(p.frames()); ended != 10 {
			t.Errorf("%d streams ended", ended)
		}
	})
}

// ends counts the streams that end with one of the frames.
func ends(frames []string) (n int) {
	for _, f := range frames {
		if strings.HasSuffix(f, " end") {
			n++
		}
	}
	return n
}

// TestTrailersBothWays echoes a body of several frames, padded ones too, and its trailers.
func TestTrailersBothWays(t *testing.T) {
	served(t, echo, func(p *peer) {
		p.ask(1, false, get()...)
		_ = p.framer.WriteDataPadded(1, false, []byte("one"), make([]byte, 100))
		p.expect("1 HEADERS :status=200", "1 DATA one")
		_ = p.framer.WriteData(1, false, []byte("two"))
		p.expect("1 DATA two")
		p.ask(1, true, "x-sum", "6")
		p.expect("1 HEADERS x-sum=6 end")
	})
}

// TestLongUpload: the windows of the client are filled again as the handler reads.
func TestLongUpload(t *testing.T) {
	total := 0
	served(t, func(s *Stream) {
		n, err := io.Copy(io.Discard, s)
		if total = int(n); err != nil {
			t.Error(err)
		}
		hello(s)
	}, func(p *peer) {
		p.ask(1, false, get()...)
		for range 4 * ConnWindow / 10_000 {
			_ = p.framer.WriteDataPadded(1, false, make([]byte, 9_000), make([]byte, 200))
			synctest.Wait()
		}
		_ = p.framer.WriteData(1, true, nil)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		if want := 4 * ConnWindow / 10_000 * 9_000; total != want {
			t.Errorf("%d of %d bytes", total, want)
		}
	})
}

// TestInterimResponses: 1xx heads come before the final one, and none behind it.
func TestInterimResponses(t *testing.T) {
	served(t, func(s *Stream) {
		_ = s.WriteHeader(100, nil, false)
		_ = s.WriteHeader(103, fields("link", "</x>"), false)
		_ = s.Flush()
		_ = s.WriteHeader(200, nil, true)
		if s.WriteHeader(103, nil, false) == nil || s.WriteHeader(200, nil, false) == nil {
			t.Error("a second head was taken")
		}
	}, func(p *peer) {
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=100", "1 HEADERS :status=103 link=</x>", "1 HEADERS :status=200 end")
	})
}

// TestFieldsThatAreNotAllowed are left out of responses.
func TestFieldsThatAreNotAllowed(t *testing.T) {
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, fields("Upper", "x", "a b", "x", "", "x", "x", "y\r\nz", "ok", "1"), true)
	}, func(p *peer) {
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=200 ok=1 end")
	})
}

// TestExtendedConnect is a tunnel inside a stream (RFC 8441), which the SETTINGS offer.
func TestExtendedConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := unserved(t)
		var protocol string
		p.serve(func(s *Stream) { protocol = s.Protocol; echo(s) })
		p.greet()
		synctest.Wait()
		if connect := []byte{0, 8, 0, 0, 0, 1}; !bytes.Contains(p.in.Bytes(), connect) {
			t.Error("it is not on offer")
		}
		p.frames()
		p.ask(1, false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "example.com", ":path", "/chat")
		_ = p.framer.WriteData(1, false, []byte("ping"))
		p.expect("1 HEADERS :status=200", "1 DATA ping")
		_ = p.framer.WriteData(1, true, nil)
		p.expect("1 DATA  end")
		if protocol != "websocket" {
			t.Error(protocol)
		}
		p.leave()
	})
}

// TestHandlersThatBreakOff: a response that is not ended is reset, also by a panic, which ends the connection.
func TestHandlersThatBreakOff(t *testing.T) {
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, nil, false)
		if s.Path == "/code" {
			s.Reset(http2.ErrCodeRefusedStream)
		}
	}, func(p *peer) {
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=200", "1 RST_STREAM INTERNAL_ERROR")
		p.ask(3, true, append(get()[:6], ":path", "/code")...)
		p.expect("3 HEADERS :status=200", "3 RST_STREAM REFUSED_STREAM")
	})
	synctest.Test(t, func(t *testing.T) {
		p := unserved(t)
		panicked := 0
		p.serveBy(func(nc net.Conn) {
			Serve(t.Context(), nc, Config{
				Handler: func(*Stream) { panic("x") }, Refused: p.told, Panicked: func(any) { panicked++ }, Idle: time.Minute,
			})
		})
		p.greet()
		p.ask(1, true, get()...)
		synctest.Wait()
		if !p.ended || panicked != 1 {
			t.Errorf("ended %v, %d panics", p.ended, panicked)
		}
	})
}

// TestResetByTheClient ends reads, writes and the context of the handler.
func TestResetByTheClient(t *testing.T) {
	for name, wait := range map[string]func(*Stream) error{
		"read":    func(s *Stream) error { _, err := s.Read(make([]byte, 1)); return err },
		"write":   func(s *Stream) error { _, err := s.Write(make([]byte, 1<<20)); return err },
		"context": func(s *Stream) error { <-s.Context().Done(); return s.Context().Err() },
	} {
		t.Run(name, func(t *testing.T) {
			var got error
			served(t, func(s *Stream) {
				_ = s.WriteHeader(200, nil, false)
				_ = s.Flush()
				got = wait(s)
			}, func(p *peer) {
				p.ask(1, false, get()...)
				p.frames()
				if got != nil {
					t.Fatal("it did not wait")
				}
				_ = p.framer.WriteRSTStream(1, http2.ErrCodeCancel)
				p.expect()
				var reset http2.StreamError
				if !errors.Is(got, context.Canceled) && (!errors.As(got, &reset) || reset.Code != http2.ErrCodeCancel) {
					t.Error(got)
				}
			})
		})
	}
}

// TestHeadTooLarge answers a head beyond reading with 431, and goes on.
func TestHeadTooLarge(t *testing.T) {
	served(t, hello, func(p *peer) {
		p.ask(1, true, get("x", strings.Repeat("y", headMax-3000), "z", strings.Repeat("y", 4000))...)
		p.expect("1 HEADERS :status=431 end")
		p.ask(3, false, get("x", strings.Repeat("y", headMax-3000), "z", strings.Repeat("y", 4000))...)
		p.expect("3 HEADERS :status=431 end", "3 RST_STREAM NO_ERROR")
		p.expectRefused("the request head is too large", "the request head is too large")
		p.ask(5, true, get("x", strings.Repeat("y", headMax-1000))...)
		p.expect("5 HEADERS :status=200", "5 DATA hello end")
	})
}

// TestLargeResponseHead comes in several frames.
func TestLargeResponseHead(t *testing.T) {
	served(t, func(s *Stream) { _ = s.WriteHeader(200, fields("x", strings.Repeat("y", 100<<10)), true) }, func(p *peer) {
		p.ask(1, true, get()...)
		if got := p.frames(); len(got) != 1 || got[0] != "1 HEADERS :status=200 x="+strings.Repeat("y", 100<<10)+" end" {
			t.Errorf("%.100q", got)
		}
	})
}

// TestIdleConnections are told to go, and closed.
func TestIdleConnections(t *testing.T) {
	served(t, func(s *Stream) { time.Sleep(90 * time.Second); hello(s) }, func(p *peer) {
		p.ask(1, true, get()...)
		time.Sleep(2 * time.Minute)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		time.Sleep(29 * time.Second)
		p.expect()
		time.Sleep(time.Second)
		p.expect("GOAWAY 1 NO_ERROR")
		p.ask(3, true, get()...) // too late
		_ = p.framer.WriteData(3, true, nil)
		p.expect()
		time.Sleep(goAwayTime)
		synctest.Wait()
		if !p.ended {
			t.Error("the connection goes on")
		}
	})
}

// TestClientThatLeaves by GOAWAY gets the answers to what it has asked.
func TestClientThatLeaves(t *testing.T) {
	served(t, func(s *Stream) { time.Sleep(time.Minute); hello(s) }, func(p *peer) {
		p.ask(1, true, get()...)
		_ = p.framer.WriteGoAway(0, http2.ErrCodeNo, nil)
		p.expect("GOAWAY 1 NO_ERROR")
		time.Sleep(time.Minute)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		time.Sleep(goAwayTime)
		synctest.Wait()
		if !p.ended {
			t.Error("the connection goes on")
		}
	})
}

// TestSilentClients: a connection without the preface, or without SETTINGS, ends.
func TestSilentClients(t *testing.T) {
	for _, said := range []string{"", http2.ClientPreface[:20], http2.ClientPreface, http2.ClientPreface + "\x00\x00\x06"} {
		synctest.Test(t, func(t *testing.T) {
			p := unserved(t)
			p.serve(hello)
			_, _ = io.WriteString(p.conn, said)
			time.Sleep(prefaceTime)
			synctest.Wait()
			if !p.ended {
				t.Errorf("behind %q the connection goes on", said)
			}
		})
	}
	for _, said := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"} {
		synctest.Test(t, func(t *testing.T) {
			p := unserved(t)
			p.serve(hello)
			_, _ = io.WriteString(p.conn, said)
			p.expect("GOAWAY 0 PROTOCOL_ERROR")
			p.expectRefused("the connection is ended with PROTOCOL_ERROR")
			p.leave()
		})
	}
}

// TestNothingIsHeldWhileIdle: between requests a connection has no buffers and one goroutine.
func TestNothingIsHeldWhileIdle(t *testing.T) {
	var c *conn
	served(t, func(s *Stream) { c = s.c; echo(s) }, func(p *peer) {
		p.ask(1, false, get()...)
		_ = p.framer.WriteData(1, false, make([]byte, 10_000))
		_ = p.framer.WriteData(1, true, nil)
		p.frames()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.out.pending != nil || c.out.writing || len(c.streams) != 0 || c.running != 0 {
			t.Errorf("%d bytes to write, writing %v, %d streams, %d handlers", len(c.out.pending), c.out.writing, len(c.streams), c.running)
		}
	})
}
