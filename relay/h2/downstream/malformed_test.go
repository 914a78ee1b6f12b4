package downstream

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"boxgate/relay/h2"
)

// TestMalformedRequests sends requests that violate RFC 9113, 8.1 to 8.3, each followed by a valid one: the stream is reset, one
// refusal is reported, and the HPACK state stays in step with the client's.
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
		"a blank before a value": with("x", " y"), "a tab behind a value": with("x", "y\t"), "a blank value": with("x", " "),
		"a capital letter": with("X-Key", "y"), "a space in a name": with("x y", "z"), "an empty name": with("", "z"), "a colon in a name": with("x:", "z"),
		"CR in a name": with("x\r", "z"), "connection": with("connection", "close"), "proxy-connection": with("proxy-connection", "keep-alive"),
		"keep-alive": with("keep-alive", "timeout=5"), "transfer-encoding": with("transfer-encoding", "chunked"), "upgrade": with("upgrade", "h2c"),
		"te": with("te", "gzip"), "te and more": with("te", "trailers, deflate"),
		"another Host": with("host", "evil.example.com"), "two Hosts": with("host", "example.com", "host", "example.com"),
		"a user": append(without(":authority"), ":authority", "user@example.com"), "spaces in the authority": append(without(":authority"), ":authority", "a b"),
		"CONNECT with a path": {":method", "CONNECT", ":authority", "example.com:443", ":path", "/"}, "CONNECT to nowhere": {":method", "CONNECT"},
		"a protocol without CONNECT":      append([]string{":protocol", "websocket"}, get()...),
		"extended CONNECT without a path": {":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			reached := 0
			served(t, func(s *Stream) { reached++; hello(s) }, func(p *peer) {
				for id := uint32(1); id < 12; id += 4 {
					p.ask(id, id > 1, head...)
					p.expect(fmt.Sprintf("%d RST_STREAM PROTOCOL_ERROR", id))
					if id == 1 { // frames in transit are ignored
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

// TestEndsOfConnections violates rules about the whole connection, which then ends (RFC 9113, 5.4.1).
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

// headWithoutEnd sends a head above the limit, in an incomplete block.
func headWithoutEnd(p *peer) {
	block := p.encode(get("x", strings.Repeat("y", 100<<10), "z", strings.Repeat("y", 100<<10), "w", "v")...)
	_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10]})
	for block = block[16<<10:]; len(block) > 0; block = block[min(len(block), 16<<10):] {
		_ = p.framer.WriteContinuation(1, false, block[:min(len(block), 16<<10)])
	}
	_ = p.framer.WriteContinuation(1, true, nil)
}

// TestEndsOfStreams violates rules about one stream: others continue (5.4.2).
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
		}, "ENHANCE_YOUR_CALM"},
		"more than declared": {func(p *peer) {
			p.ask(1, false, get("content-length", "1")...)
			_ = p.framer.WriteData(1, false, []byte("xy"))
		}, "PROTOCOL_ERROR"},
		"less than declared": {func(p *peer) {
			p.ask(1, false, get("content-length", "3")...)
			_ = p.framer.WriteData(1, true, []byte("xy"))
		}, "PROTOCOL_ERROR"},
		"many trailers": {func(p *peer) {
			var fields []string
			for i := range 129 {
				fields = append(fields, fmt.Sprint("x-", i), "y")
			}
			p.ask(1, false, post...)
			p.ask(1, true, fields...)
		}, "ENHANCE_YOUR_CALM"},
		"large trailers":              {func(p *peer) { p.ask(1, false, post...); p.ask(1, true, "x", strings.Repeat("y", 16<<10)) }, "ENHANCE_YOUR_CALM"},
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
		p.expect("3 HEADERS :status=200", "3 DATA hello end")
		time.Sleep(bodyGrace)
		p.expect("3 RST_STREAM NO_ERROR")
		_ = p.framer.WriteData(3, true, []byte("x"))
		p.expect()
		p.ask(5, false, get()...) // a client that goes on sending is not disturbed
		p.expect("5 HEADERS :status=200", "5 DATA hello end")
		_ = p.framer.WriteData(5, false, []byte("x"))
		_ = p.framer.WriteData(5, true, []byte("y"))
		time.Sleep(2 * bodyGrace)
		p.expect()
		p.expectRefused()
	})
}

// TestHeadTooLarge: a head above the limit is answered with 431, and the connection continues.
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
