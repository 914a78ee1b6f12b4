package ingress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/audit"
	"boxgate/internal/handshake"
	"boxgate/policy"
	"boxgate/policy/name"
)

// frames is a visitor who writes HTTP/2 frames.
type frames struct {
	t *testing.T
	*http2.Framer
	net.Conn
	enc  *hpack.Encoder
	text bytes.Buffer
	next uint32
}

// frames connects to a URL.
func (f *fixture) frames(t *testing.T, host string) *frames {
	t.Helper()
	v := &frames{t: t, Conn: f.handshake(t, f.dial(t, f.https), host+domain, "h2"), next: 1}
	_ = v.SetDeadline(time.Now().Add(time.Minute))
	v.Framer = http2.NewFramer(v.Conn, v.Conn)
	v.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	v.AllowIllegalWrites = true
	v.enc = hpack.NewEncoder(&v.text)
	_, _ = io.WriteString(v.Conn, http2.ClientPreface)
	if err := v.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return v
}

// ask sends a head, from alternating names and values, and returns its stream.
func (v *frames) ask(end bool, fields ...string) uint32 {
	v.t.Helper()
	v.text.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = v.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	id := v.next
	v.next += 2
	if err := v.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: v.text.Bytes(), EndStream: end, EndHeaders: true}); err != nil {
		v.t.Fatal(err)
	}
	return id
}

// response collects the frames of a stream until it ended.
type response struct {
	heads []*http2.MetaHeadersFrame // 1xx, the response's, trailers
	body  string
	reset http2.ErrCode
	ended bool // ended without a reset
}

func (r *response) status() string {
	if len(r.heads) == 0 {
		return "reset " + r.reset.String()
	}
	return r.heads[len(r.heads)-1].PseudoValue("status")
}

// answer reads the response of a stream.
func (v *frames) answer(id uint32) (r response) {
	v.t.Helper()
	for !r.ended {
		f, err := v.ReadFrame()
		if err != nil {
			v.t.Fatalf("%v, after %+v", err, r)
		}
		if _, ok := f.(*http2.SettingsFrame); ok && !f.Header().Flags.Has(http2.FlagSettingsAck) {
			_ = v.WriteSettingsAck()
		}
		if f.Header().StreamID != id {
			continue
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			r.heads = append(r.heads, f)
			r.ended = f.StreamEnded()
		case *http2.DataFrame:
			r.body += string(f.Data())
			r.ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			r.reset = f.ErrCode
			return r
		}
	}
	return r
}

// to returns the pseudo-header fields of a request for a URL.
func to(method, host, path string, more ...string) []string {
	return append([]string{":method", method, ":scheme", "https", ":authority", host + domain, ":path", path}, more...)
}

// A request that HTTP/1.1 would refuse is also refused over HTTP/2, and does not reach a box.
func TestOddRequestsOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxHeaderBytes = 8 << 10 })
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	f.expose("two", box.Server, Auth{Open: true})
	one := "one" + domain
	for name, c := range map[string]struct {
		fields []string
		want   string
	}{
		"an absolute :path":            {to("GET", "one", "https://"+one+"/"), "reset PROTOCOL_ERROR"},
		"a :path that is an authority": {to("GET", "one", one), "reset PROTOCOL_ERROR"},
		"an asterisk for another URL":  {to("OPTIONS", "two", "*"), "421"},
		"an asterisk with GET":         {to("GET", "one", "*"), "400"},
		"a space in the :path":         {to("GET", "one", "/ HTTP/1.1"), "400"},
		"a broken escape":              {to("GET", "one", "/%zz"), "400"},
		"a space in the method":        {to("GET /", "one", "/"), "400"},
		"a Host of another URL":        {to("GET", "one", "/", "host", "two"+domain), "reset PROTOCOL_ERROR"},
		"another URL's :authority":     {to("GET", "two", "/"), "421"},
		"an address":                   {[]string{":method", "GET", ":scheme", "https", ":authority", "127.0.0.1", ":path", "/"}, "421"},
		"a port that is none":          {[]string{":method", "GET", ":scheme", "https", ":authority", one + ":abc", ":path", "/"}, "421"},
		"an authority with a blank":    {[]string{":method", "GET", ":scheme", "https", ":authority", " " + one, ":path", "/"}, "reset PROTOCOL_ERROR"},
		"a plain CONNECT":              {[]string{":method", "CONNECT", ":authority", one + ":443"}, "421"},
		"a CONNECT to something else":  {append([]string{":protocol", "connect-udp"}, to("CONNECT", "one", "/")...), "501"},
		"a CONNECT with a length":      {append([]string{":protocol", "websocket"}, to("CONNECT", "one", "/", "content-length", "5")...), "400"},
		"a WebSocket by HEAD":          {append([]string{":protocol", "websocket"}, to("HEAD", "one", "/")...), "reset PROTOCOL_ERROR"},
		"two lengths":                  {to("POST", "one", "/", "content-length", "5", "content-length", "6"), "400"},
		"a length without a body":      {to("POST", "one", "/", "content-length", "5"), "400"},
		"a length that is none":        {to("POST", "one", "/", "content-length", "+5"), "400"},
		"a length in disguise":         {to("POST", "one", "/", "content_length", "5"), "400"},
		"Transfer-Encoding":            {to("POST", "one", "/", "transfer-encoding", "chunked"), "reset PROTOCOL_ERROR"},
		"another expectation":          {to("POST", "one", "/", "expect", "200-ok"), "417"},
		"a head too large":             {to("GET", "one", "/", "x", strings.Repeat("y", 10<<10)), "431"},
	} {
		v := f.frames(t, "one")
		answer := v.answer(v.ask(true, c.fields...))
		if got := answer.status(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		f.event(t, func(e audit.Event) bool { return e.Verdict == policy.Deny })
		f.mu.Lock()
		f.events = nil
		f.mu.Unlock()
	}
	if n := box.count(); n != 0 {
		t.Errorf("%d requests reached the box", n)
	}
}

// answersAll answers every request with the text, ignoring any body.
func answersAll(text string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, in *bufio.Reader) {
		for {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}
}

// Fields that a box may not set for the whole domain are removed from every part of a response.
func TestNoPartOfAResponseReachesOtherURLs(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	foul := "Set-Cookie: a=1; Domain=preview.test\r\nSet-Cookie: __Host-boxgate-session=x; Path=/\r\nAlt-Svc: h3=\":1\"\r\nClear-Site-Data: \"cookies\"\r\nKeep-Alive: 5\r\nX-Kept: yes\r\n"
	f.script(t, "one", answersAll("HTTP/1.1 103 Early Hints\r\n"+foul+"\r\nHTTP/1.1 200 OK\r\n"+foul+
		"Trailer: x-kept\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"+foul+"\r\n"))
	v := f.frames(t, "one")
	r := v.answer(v.ask(true, to("GET", "one", "/")...))
	if len(r.heads) != 3 || r.body != "ok" {
		t.Fatalf("%+v", r)
	}
	for i, head := range r.heads {
		kept := false
		for _, h := range head.Fields {
			switch h.Name {
			case "x-kept":
				kept = true
			case ":status", "trailer":
			case "set-cookie":
				if h.Value != "a=1" || i == 2 {
					t.Errorf("part %d: %s", i, h.Value)
				}
			default:
				t.Errorf("part %d: %s: %s", i, h.Name, h.Value)
			}
		}
		if !kept {
			t.Errorf("part %d lost a field", i)
		}
	}
}

// If a box sends an invalid response, the visitor gets one 502; if it breaks off within a response, the stream is reset.
func TestOddResponsesOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	for name, c := range map[string]struct{ text, want string }{
		"status 000":           {"HTTP/1.1 000 Nothing\r\n\r\n", "502"},
		"status 099":           {"HTTP/1.1 099 Nothing\r\n\r\n", "502"},
		"an upgrade":           {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "502"},
		"endless 1xx":          {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100), "502"},
		"two lengths":          {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "502"},
		"a length twice":       {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab", "200"},
		"a padded chunk":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked,\r\n\r\n2  \r\nab\r\n0  \r\n\r\n", "200"},
		"a bare LF":            {"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n", "502"},
		"a broken chunk":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxx\r\n", "reset"},
		"a body cut short":     {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nab", "reset"},
		"an early end":         {"HTTP/1.1 200 OK\r\n", "502"},
		"a body until the end": {"HTTP/1.0 200 OK\r\n\r\nab", "200"},
		"not modified":         {"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "304"},
	} {
		host := strings.ReplaceAll(strings.ToLower(name), " ", "-")
		f.script(t, host, func(c2 net.Conn, in *bufio.Reader) {
			if _, err := http.ReadRequest(in); err == nil {
				_, _ = io.WriteString(c2, c.text)
			}
		})
		v := f.frames(t, host)
		r := v.answer(v.ask(true, to("GET", host, "/")...))
		if got := r.status(); r.ended != (c.want != "reset") || r.ended && got != c.want {
			t.Errorf("%s: %s, ended %v", name, got, r.ended)
		}
		for _, h := range r.heads {
			for _, f := range h.RegularFields() {
				if name == "not modified" && f.Name == "content-length" { // Go's client would wait for the content
					t.Errorf("%s: %v", name, f)
				}
			}
		}
	}
}

// A box may answer before it has the whole request. The visitor gets the response, and is asked to stop sending the body.
func TestEarlyResponsesOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.script(t, "one", answersAll("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"))
	v := f.frames(t, "one")
	for range 3 {
		id := v.ask(false, to("POST", "one", "/")...)
		_ = v.WriteData(id, false, []byte("begin"))
		if r := v.answer(id); r.status() != "413" || r.body != "no" {
			t.Errorf("%+v", r)
		}
	}
}

// A body that stops arriving ends with a 408, if the box has not answered.
func TestStalledBodies(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.BodyTimeout = 500 * time.Millisecond })
	f.script(t, "waits", func(_ net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) })
	v := f.frames(t, "waits")
	if r := v.answer(v.ask(false, to("POST", "waits", "/")...)); r.status() != "408" {
		t.Errorf("%+v", r)
	}
	c := f.connectTo(t, "waits"+domain)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: waits.preview.test\r\nContent-Length: 5\r\n\r\n")
	if answer, _ := io.ReadAll(c); !strings.HasPrefix(string(answer), "HTTP/1.1 408 ") {
		t.Errorf("%q", answer)
	}
	f.event(t, func(e audit.Event) bool { return e.Status == 408 && e.Verdict == policy.Deny })
}

// A visitor that does not read a response loses it after BodyTimeout, and the box loses its visitor.
func TestStalledReaders(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.BodyTimeout = 100 * time.Millisecond })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	f.expose("big", server, Auth{Open: true})
	v := f.frames(t, "big")
	v.ask(true, to("GET", "big", "/two")...)
	c := f.connectTo(t, "big"+domain)
	_, _ = io.WriteString(c, "GET /one HTTP/1.1\r\nHost: big.preview.test\r\n\r\n")
	for _, path := range []string{"/one", "/two"} {
		f.event(t, func(e audit.Event) bool { return e.Path == path && e.Phase != "open" && e.Error != "" })
	}
}

// A box that does not answer delays its visitor only for ResponseTimeout, whether or not it answered earlier requests.
func TestBoxThatNeverAnswers(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.ResponseTimeout = time.Millisecond })
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		if r, err := http.ReadRequest(in); err == nil && r.URL.Path == "/first" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return
		}
		_, _ = io.Copy(io.Discard, in)
	})
	for _, h2 := range []bool{false, true} {
		client := f.client(t, h2)
		client.Timeout = time.Minute
		for status := 0; status != 200; { // on the same connection; may be late on a slow machine
			resp, _ := get(t, client, "https://one"+domain+"/first", nil)
			status = resp.StatusCode
		}
		resp, body := get(t, client, "https://one"+domain+"/", nil)
		if resp.StatusCode != http.StatusGatewayTimeout || !strings.Contains(body, string(name.ReasonURLUnavailable)) {
			t.Errorf("%s %s", resp.Status, body)
		}
	}
}

// An extended CONNECT opens a WebSocket; a box's 200 does not.
func TestWebSocketOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	seen := make(chan *http.Request, 1)
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		seen <- r
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			handshake.Accept(r.Header.Get("Sec-Websocket-Key")))
		_, _ = io.Copy(c, in)
	})
	f.script(t, "page", answersAll("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	connect := func(host string) []string {
		return append([]string{":protocol", "websocket"}, to("CONNECT", host, "/chat?x=1", "sec-websocket-version", "13", "cookie", "a=1", "cookie", "b=2")...)
	}
	v := f.frames(t, "one")
	id := v.ask(false, connect("one")...)
	_ = v.WriteData(id, false, []byte("some bytes"))
	_ = v.WriteData(id, true, []byte(", and an end"))
	r := v.answer(id)
	if r.status() != "200" || r.body != "some bytes, and an end" {
		t.Errorf("%+v", r)
	}
	for _, h := range r.heads[0].Fields {
		if h.Name != ":status" {
			t.Errorf("%v", h)
		}
	}
	if got := <-seen; got.Method != "GET" || got.RequestURI != "/chat?x=1" || got.Header.Get("Cookie") != "a=1; b=2" || got.Header.Get("Upgrade") != "websocket" {
		t.Errorf("%+v", got)
	}
	e := f.event(t, func(e audit.Event) bool { return e.Phase != "open" && e.Verdict == policy.Allow })
	if e.Method != "CONNECT" || e.Path != "/chat" || e.BytesIn != 22 || e.BytesOut != 22 || e.Status != 200 {
		t.Errorf("%+v", e)
	}
	v = f.frames(t, "page")
	if r := v.answer(v.ask(false, connect("page")...)); r.status() != "502" {
		t.Errorf("%+v", r)
	}
}

// A panic while relaying a box's WebSocket data ends only that WebSocket, whatever its client sends at the same time.
func TestPanicInAWebSocketOverHTTP2(t *testing.T) {
	t.Parallel()
	boxes := &sleepers{moved: func(byVisitor bool) {
		if !byVisitor {
			panic("no")
		}
	}}
	boxes.up.Store(true)
	f := start(t, func(c *Config) { c.Boxes = boxes })
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			handshake.Accept(r.Header.Get("Sec-Websocket-Key")))
		_, _ = io.Copy(c, in)
	})
	f.script(t, "page", answersAll("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	for range 10 {
		v := f.frames(t, "one")
		id := v.ask(false, append([]string{":protocol", "websocket"}, to("CONNECT", "one", "/", "sec-websocket-version", "13")...)...)
		_ = v.WriteData(id, false, []byte("hello"))
		if r := v.answer(id); r.reset != http2.ErrCodeInternal || r.body != "" {
			t.Errorf("%+v", r)
		}
		v = f.frames(t, "page")
		if r := v.answer(v.ask(true, to("GET", "page", "/")...)); r.status() != "200" {
			t.Errorf("afterwards: %+v", r)
		}
	}
}

// Revoking a URL immediately cuts its requests over HTTP/2: a WebSocket, a response that is not read, a waiting request.
func TestRevocationOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	begun := make(chan struct{}, 3)
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		switch r.URL.Path {
		case "/socket":
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
				handshake.Accept(r.Header.Get("Sec-Websocket-Key")))
		case "/stream":
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nhello")
		}
		begun <- struct{}{}
		_, err = io.Copy(io.Discard, in)
		if errors.Is(err, net.ErrClosed) {
			return
		}
	})
	v := f.frames(t, "one")
	ids := []uint32{
		v.ask(false, append([]string{":protocol", "websocket"}, to("CONNECT", "one", "/socket", "sec-websocket-version", "13")...)...),
		v.ask(true, to("GET", "one", "/stream")...), v.ask(false, to("POST", "one", "/wait")...),
	}
	for range ids {
		<-begun
	}
	for answered := 0; answered < 2; {
		if fr, err := v.ReadFrame(); err != nil {
			t.Fatal(err)
		} else if _, ok := fr.(*http2.MetaHeadersFrame); ok {
			answered++
		}
	}
	f.remove("one" + domain)
	f.CloseURL("one")
	ends := map[uint32]string{}
	for len(ends) < len(ids) {
		fr, err := v.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch fr := fr.(type) {
		case *http2.RSTStreamFrame:
			ends[fr.StreamID] = "reset"
		case *http2.MetaHeadersFrame:
			if fr.PseudoValue("status") == "401" {
				ends[fr.StreamID] = "401"
			}
		}
	}
	if ends[ids[0]] != "reset" || ends[ids[1]] != "reset" || ends[ids[2]] == "" {
		t.Errorf("%v", ends)
	}
}
