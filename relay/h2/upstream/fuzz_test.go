package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h2"
)

//lint:file-ignore SA1019 the deprecated transport is what this package is compared with

// scripted is a connection to a server that says the same whatever it is told: once it has read the head of a request,
// or at once if eager. Then it closes.
type scripted struct {
	script []byte

	mu    sync.Mutex
	said  int
	told  []byte
	ready chan struct{} // closed when the server may speak
	once  sync.Once
}

func newScripted(script []byte) *scripted {
	return &scripted{script: script, ready: make(chan struct{})}
}

func (c *scripted) Read(p []byte) (int, error) {
	<-c.ready
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said == len(c.script) {
		return 0, io.EOF
	}
	n := copy(p, c.script[c.said:])
	c.said += n
	return n, nil
}

func (c *scripted) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.told) < 4096 {
		c.told = append(c.told, p...)
	}
	for rest := bytes.TrimPrefix(c.told, []byte(http2.ClientPreface)); len(rest) >= h2.FrameHead; {
		if http2.FrameType(rest[3]) == http2.FrameHeaders {
			c.speak()
			break
		}
		rest = rest[min(len(rest), h2.FrameHead+(int(rest[0])<<16|int(rest[1])<<8|int(rest[2]))):]
	}
	return len(p), nil
}

func (c *scripted) speak() { c.once.Do(func() { close(c.ready) }) }

func (c *scripted) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = len(c.script)
	c.speak()
	return nil
}

func (c *scripted) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *scripted) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *scripted) SetDeadline(time.Time) error      { return nil }
func (c *scripted) SetReadDeadline(time.Time) error  { return nil }
func (c *scripted) SetWriteDeadline(time.Time) error { return nil }

// FuzzServer lets a server send arbitrary bytes: nobody panics or waits forever, what is held is bounded, and nothing is
// left of the connection.
func FuzzServer(f *testing.F) {
	for _, ops := range [][]byte{{}, {1, 0, 3, 5, 0}, {1, 0, 3, 5, 4, 0}, {12, 3, 0, 8, 9, 9, 5, 6, 0}, {0, 2, 2, 9, 3, 200, 1}} {
		f.Add(play(ops).bytes())
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		conn := newScripted(sent)
		ended := make(chan struct{})
		c := New(conn, func() { close(ended) })
		var all sync.WaitGroup
		for i := range 3 {
			if !c.Reserve() {
				break
			}
			s, err := c.Open(t.Context(), request("GET", "/"), i != 1)
			if err != nil {
				break
			}
			all.Go(func() { consume(t, s, i) })
		}
		all.Wait()
		c.Close()
		<-ended
	})
}

// consume reads a response as far as it comes.
func consume(t *testing.T, s *Stream, i int) {
	defer s.Close()
	if i == 1 {
		_, _ = s.Write(make([]byte, 100))
		_ = s.CloseWrite(nil)
	}
	for heads := 0; ; heads++ {
		h, err := s.Head()
		if err != nil {
			return
		}
		if heads > interimsMax || h.Status < 100 || h.Status > 999 {
			t.Errorf("head %d: %+v", heads, h)
		}
		if !h.Interim() {
			break
		}
	}
	s.c.mu.Lock()
	if s.body.size > StreamWindow || len(s.c.out.buf) > 2*outRoom+64*answerMax {
		t.Errorf("%d bytes of content and %d of output are held", s.body.size, len(s.c.out.buf))
	}
	s.c.mu.Unlock()
	if i != 2 { // which is closed early
		_, _ = io.Copy(io.Discard, s)
	}
}

// a play is what a server says to one request, and what is known of it.
type played struct {
	*http2.Framer
	buf      bytes.Buffer
	block    bytes.Buffer
	enc      *hpack.Encoder
	stricter bool // we may refuse what the library takes
	laxer    bool // we may take what the library refuses
	over     bool // the stream has ended
}

func (p *played) bytes() []byte { return p.buf.Bytes() }

func (p *played) head(end bool, cut int, pairs ...string) {
	p.over = end
	p.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = p.enc.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}) // into a buffer
	}
	block := bytes.Clone(p.block.Bytes())
	first := len(block)
	if cut > 0 {
		first = min(cut, first)
	}
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:first], EndStream: end, EndHeaders: cut == 0})
	if cut > 0 {
		_ = p.WriteContinuation(1, true, block[first:])
	}
}

// play turns bytes into frames of a server that are in order, mostly.
func play(ops []byte) *played {
	p := &played{}
	p.Framer = http2.NewFramer(&p.buf, nil)
	p.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.block)
	_ = p.WriteSettings()
	next := func() int {
		if len(ops) == 0 {
			return 0
		}
		b := ops[0]
		ops = ops[1:]
		return int(b)
	}
	for len(ops) > 0 && !p.over { // what follows the end of the stream is a race for the library
		p.act(next)
	}
	return p
}

var codes = []http2.ErrCode{http2.ErrCodeNo, http2.ErrCodeRefusedStream, http2.ErrCodeCancel, http2.ErrCodeInternal, http2.ErrCodeEnhanceYourCalm, 99}

func (p *played) act(next func() int) {
	switch op := next() % 16; op {
	case 0:
		p.head(false, 0, ":status", "103", "link", "</x>")
	case 1, 2:
		status := []string{"200", "404", "204", "304"}[next()%4]
		fields := []string{":status", status, "content-type", "a/b", "x-two", "1", "x-two", strings.Repeat("2", next())}
		if op == 2 {
			n := next()
			fields = append(fields, "content-length", fmt.Sprint(n))
			p.stricter = p.stricter || n > 0 // less content than that is refused with the head, or told as an error of another kind
			p.laxer = p.laxer || status[0] != '2' || status == "204"
		}
		p.stricter = p.stricter || status == "204" || status == "304" // whose content we refuse
		p.head(next()%3 == 0, next()%40, fields...)
	case 3, 4, 5:
		content, padding, end := bytes.Repeat([]byte("d"), 3*next()), next(), next()%3 == 0
		if p.over = end; padding < 64 {
			_ = p.WriteDataPadded(1, end, content, make([]byte, padding))
		} else {
			_ = p.WriteData(1, end, content)
		}
	case 6:
		p.head(true, 0, "x-end", "1", "x-end", "2")
	case 7:
		p.over = true
		_ = p.WriteRSTStream(1, codes[next()%len(codes)])
	case 8:
		last := []uint32{0, 1, 1<<31 - 1}[next()%3]
		p.stricter = p.stricter || last == 0 // then we take no response
		_ = p.WriteGoAway(last, codes[next()%len(codes)], []byte("debug"))
	case 9:
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingID(3 + next()%4), Val: uint32(16384 + next())})
	case 10:
		_ = p.WritePing(next()%2 == 0, [8]byte{1})
	case 11:
		_ = p.WriteWindowUpdate(uint32(next()%2), uint32(1+next()))
	case 12:
		p.laxer = true // the library reads such a frame if its type is PRIORITY_UPDATE
		_ = p.WriteRawFrame(http2.FrameType(0x20+next()), http2.Flags(next()), uint32(next()), []byte("unknown"))
	case 13:
		_ = p.WritePriority(1, http2.PriorityParam{StreamDep: uint32(next())})
	case 14:
		bad := [][]string{{"X", "y"}, {"x", "\x00"}, {":path", "/"}, {":status", "200"}, {"x y", "z"}, {"", "x"}}[next()%6]
		p.head(false, 0, append([]string{":status", "200"}, bad...)...)
	case 15:
		p.head(next()%2 == 0, 0, "x", "no status")
	}
}

// outcome is what the user of a connection sees of a response.
type outcome struct {
	head, body, trailers string
	end                  string // "complete", "reset by CODE", or "broken"
}

// FuzzDifferential plays the same server to this package and to the library's transport: their users see the same.
func FuzzDifferential(f *testing.F) {
	f.Add([]byte{1, 0, 5, 1, 0, 3, 9, 0, 0})
	f.Add([]byte{0, 0, 2, 0, 1, 9, 1, 0, 3, 3, 70, 0})
	f.Add([]byte{1, 1, 1, 1, 9, 3, 50, 2, 1, 6})
	f.Add([]byte{1, 0, 0, 1, 0, 4, 50, 2, 1, 7, 2})
	f.Add([]byte{8, 0, 0, 1, 0, 0, 0, 0})
	f.Add([]byte{14, 1, 3, 1, 0, 0})
	f.Add([]byte{15, 0, 1, 1, 1, 1, 1, 15, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		p := play(ops[:min(len(ops), 200)])
		theirs, ours := library(t, p.bytes()), own(t, p.bytes())
		good := func(o outcome) bool { return o.end == "complete" }
		switch {
		case good(theirs) && !good(ours) && p.stricter, good(ours) && !good(theirs) && p.laxer:
		case good(theirs) && good(ours) && theirs == ours:
		case !good(theirs) && !good(ours):
			if theirs.head != "" && ours.head != "" && theirs.head != ours.head {
				t.Errorf("the heads are %s and %s", theirs.head, ours.head)
			}
			if !strings.HasPrefix(theirs.body, ours.body) && !strings.HasPrefix(ours.body, theirs.body) {
				t.Errorf("the bodies are %q and %q", theirs.body, ours.body)
			}
			if reset := "reset by"; strings.HasPrefix(theirs.end, reset) && strings.HasPrefix(ours.end, reset) && theirs.end != ours.end {
				t.Errorf("%s, %s", theirs.end, ours.end)
			}
		default:
			t.Errorf("%v: the library has %+v, we have %+v", ops, theirs, ours)
		}
	})
}

func own(t *testing.T, script []byte) (o outcome) {
	c := New(newScripted(script), func() {})
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c.Reserve()
	s, err := c.Open(ctx, request("GET", "/"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	end := func(err error) outcome {
		if ctx.Err() != nil {
			t.Error("we wait forever")
		}
		var reset *h2.StreamError
		if o.end = "broken"; errors.As(err, &reset) && reset.Peer {
			o.end = "reset by " + reset.Code.String()
		}
		return o
	}
	h, err := s.Head()
	for ; err == nil && h.Interim(); h, err = s.Head() {
	}
	if err != nil {
		return end(err)
	}
	o.head = fmt.Sprint(h.Status, sorted(h.Fields))
	b, err := io.ReadAll(s)
	if o.body = string(b); err != nil {
		return end(err)
	}
	o.trailers, o.end = sorted(s.Trailers()), "complete"
	return o
}

func sorted(fields []hpack.HeaderField) string {
	var lines []string
	for _, f := range fields {
		lines = append(lines, http.CanonicalHeaderKey(f.Name)+": "+f.Value)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func sortedHeader(h http.Header) string {
	var fields []hpack.HeaderField
	for name, values := range h {
		for _, v := range values {
			fields = append(fields, hpack.HeaderField{Name: name, Value: v})
		}
	}
	return sorted(fields)
}

func library(t *testing.T, script []byte) (o outcome) {
	tr := &http2.Transport{DisableCompression: true} //nolint:staticcheck // as above
	c, err := tr.NewClientConn(newScripted(script))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	end := func(err error) outcome {
		if ctx.Err() != nil {
			t.Error("the library waits forever")
		}
		var reset http2.StreamError
		if o.end = "broken"; errors.As(err, &reset) && reset.Cause != nil && reset.Cause.Error() == "received from peer" {
			o.end = "reset by " + reset.Code.String()
		}
		return o
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.RoundTrip(req)
	if err != nil {
		return end(err)
	}
	defer res.Body.Close()
	o.head = fmt.Sprint(res.StatusCode, sortedHeader(res.Header))
	b, err := io.ReadAll(res.Body)
	if o.body = string(b); err != nil {
		return end(err)
	}
	o.trailers, o.end = sortedHeader(res.Trailer), "complete"
	return o
}
