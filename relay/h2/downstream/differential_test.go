package downstream

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"boxgate/relay/h2"
)

//lint:file-ignore SA1019 the deprecated server is what ours is compared with

// FuzzLikeTheLibrary runs a program of bytes against our server and that of golang.org/x/net/http2, step by step: the same
// requests reach the handlers, with the same fields, bodies and trailers, and the client sees the same frames. Intended
// differences are not part of the programs, or are evened out by visible:
//
//   - A stream number that must not be used ends the connection, even if the head is malformed. The library resets the stream.
//   - A stream that the server has reset ignores frames that were in transit. The library resets it again with STREAM_CLOSED,
//     ends the connection if trailers come, or, if the head was malformed, treats the stream as never opened.
//   - A setting twice in a frame: the later one counts. The library ends the connection.
//   - Fields of HTTP/1.1 connections reset the stream. The library answers 400.
//   - Frames too short for what their flags announce, and HEADERS with more padding than payload, end the connection with a
//     GOAWAY. The library closes it without one, or resets the stream and loses the HPACK state.
//   - More requests than allowed at a time get REFUSED_STREAM. The library chooses PROTOCOL_ERROR once its SETTINGS are
//     acknowledged.
//   - A path that is no URL, such as one with %zz, reaches the handler, as it does over HTTP/1.1.
//   - A body shorter than its Content-Length resets the stream with PROTOCOL_ERROR; the library's handler finds out.
//   - Trailers that were not announced reach the handler; framing fields are refused even if not announced.
//   - A malformed head in several frames resets its stream. The library ends the connection.
//   - A head too large is answered 431 without a page.
//   - Frames beyond the budget of [h2.Budget] end the connection.
//   - Heads of responses have their fields in the order given; the library sorts them.
func FuzzLikeTheLibrary(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(randomProgram(seed))
	}
	f.Fuzz(func(t *testing.T, program []byte) { compare(t, program) })
}

// TestLikeTheLibrary runs random programs of the fuzz test.
func TestLikeTheLibrary(t *testing.T) {
	for seed := range uint64(3000) {
		if compare(t, randomProgram(1000+seed)); t.Failed() {
			t.Fatalf("seed %d", 1000+seed)
		}
	}
}

func randomProgram(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	program := make([]byte, 20+r.IntN(200))
	for i := range program {
		program[i] = byte(r.Uint32())
	}
	return program
}

// outcome is the outcome of a program: the visible frames of each step, and the requests that the handlers saw.
type outcome struct {
	mu       sync.Mutex
	steps    []string
	requests map[string]bool
}

func (o *outcome) saw(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests[fmt.Sprintf(format, args...)] = true
}

func (o *outcome) list() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for r := range o.requests {
		all = append(all, r)
	}
	sort.Strings(all)
	return all
}

func compare(t *testing.T, program []byte) {
	ours, theirs := outcome{requests: map[string]bool{}}, outcome{requests: map[string]bool{}}
	synctest.Test(t, func(t *testing.T) {
		p := unserved(t)
		p.serve(ourHandler(&ours))
		ours.steps = p.perform(program)
	})
	synctest.Test(t, func(t *testing.T) {
		p := unserved(t)
		p.serveBy(theirServer(&theirs))
		theirs.steps = p.perform(program)
	})
	if got, want := ours.list(), theirs.list(); !slices.Equal(got, want) {
		t.Errorf("requests %q\nwant     %q", got, want)
	}
	for i := range min(len(ours.steps), len(theirs.steps)) {
		if ours.steps[i] != theirs.steps[i] {
			t.Errorf("step %d: %s\nwant    %s\nafter %q", i, ours.steps[i], theirs.steps[i], ours.steps[:i])
			break
		}
	}
}

// describe returns a request as a handler sees it.
func describe(method, scheme, authority, path string, length int64, fields []string) string {
	sort.Strings(fields)
	return fmt.Sprintf("%s %s://%s %s %d %q", method, scheme, authority, path, length, fields)
}

func ourHandler(o *outcome) func(*Stream) {
	return func(s *Stream) {
		var fields []string
		for _, f := range s.Fields {
			if f.Name != "host" {
				fields = append(fields, f.Name+": "+f.Value)
			}
		}
		o.saw("%s", describe(s.Method, s.Scheme, s.Authority, s.Path, s.Length, fields))
		_ = s.WriteHeader(200, nil, false)
		_ = s.Flush()
		body, err := io.ReadAll(s)
		trailers := ""
		for _, f := range s.Trailers() {
			if !slices.Contains(fields, "trailer: "+f.Name) {
				continue // the library knows announced ones alone
			}
			trailers += f.Name + ": " + f.Value + " "
		}
		if err != nil {
			return
		}
		o.saw("%s body %q trailers %s", s.Path, body, trailers)
		_, _ = io.WriteString(s, "answer")
		_ = s.CloseWrite(nil)
	}
}

func theirServer(o *outcome) func(net.Conn) {
	return func(nc net.Conn) {
		server := &http2.Server{
			MaxConcurrentStreams: h2.Streams, IdleTimeout: time.Minute, MaxReadFrameSize: h2.FrameMax,
			MaxUploadBufferPerStream: StreamWindow, MaxUploadBufferPerConnection: ConnWindow,
		}
		if err := http2.ConfigureServer(&http.Server{}, server); err != nil { //nolint:staticcheck // SA1019, as above; else it shares channels with other bubbles
			panic(err)
		}
		server.ServeConn(nc, &http2.ServeConnOpts{
			BaseConfig: &http.Server{MaxHeaderBytes: h2.HeadRead, ErrorLog: log.New(io.Discard, "", 0)},
			Handler:    theirHandler(o),
		})
	}
}

func theirHandler(o *outcome) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var fields []string
		for name, values := range r.Header {
			for _, v := range values {
				fields = append(fields, strings.ToLower(name)+": "+v)
			}
		}
		for name := range r.Trailer {
			fields = append(fields, "trailer: "+strings.ToLower(name))
		}
		scheme := "http"
		if r.TLS != nil || r.Method == http.MethodConnect {
			scheme = "https"
		}
		path := r.RequestURI
		if r.Method == http.MethodConnect {
			scheme, path = "", ""
		} else if scheme == "http" {
			scheme = "https" // the connection is without TLS: the programs know https alone
		}
		o.saw("%s", describe(r.Method, scheme, r.Host, path, r.ContentLength, fields))
		w.Header()["Date"], w.Header()["Content-Type"], w.Header()["Content-Length"] = nil, nil, nil
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		body, err := io.ReadAll(r.Body)
		trailers := ""
		for name, values := range r.Trailer {
			for _, v := range values {
				trailers += strings.ToLower(name) + ": " + v + " "
			}
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		o.saw("%s body %q trailers %s", path, body, trailers)
		_, _ = io.WriteString(w, "answer")
	}
}

// heads are the heads that programs may send, valid and malformed.
var heads = [][]string{
	get(), get(), get("x-a", "b", "x-a", "c"), get("te", "trailers"), get("cookie", "a=b"), get("content-length", "0"),
	get("content-length", "x"), get("host", "example.com"), get("host", "other"), get("host", "example.com", "host", "example.com"),
	get("trailer", "x-sum"), get("X-Capital", "y"), get("x", "a\r\nb"), get("x y", "z"), get(":path", "/twice"), get(":unknown", "x"),
	{":method", "GET"}, {":method", "GET", ":scheme", "https", ":path", "/no-authority"}, {":method", "POST", ":scheme", "ftp", ":authority", "a", ":path", "/"},
	{":method", "CONNECT", ":authority", "example.com:443"}, {":method", "CONNECT", ":authority", "a", ":path", "/"},
	{":method", "GET", ":scheme", "https", ":authority", "user@a", ":path", "/"}, {":method", "GET", ":scheme", "https", ":authority", "a b", ":path", "/"},
	{":method", "OPTIONS", ":scheme", "https", ":authority", "a", ":path", "*"}, {":method", "GET", ":scheme", "https", ":authority", "a", ":path", ""},
	{":status", "200"}, {"x", "y", ":method", "GET", ":scheme", "https", ":path", "/"}, {":method", "", ":scheme", "https", ":path", "/"},
}

// perform runs a program and returns the visible frames of each step.
func (p *peer) perform(program []byte) (steps []string) {
	_, _ = io.WriteString(p.conn, http2.ClientPreface)
	_ = p.framer.WriteSettings()
	_ = p.framer.WriteSettingsAck()
	used := map[uint32]bool{}
	ended := map[uint32]bool{} // streams that the server has reset, or that have sent all
	p.frames()
	for len(program) >= 4 {
		op, arg := program[0], program[1]
		stream := uint32(program[2]%8)*2 + 1 - uint32(program[2]>>7) // even with one chance in two: see below
		if program[2]>>5 != 7 {
			stream |= 1
		}
		if stream%2 == 1 && stream < p.opened && !used[stream] { // the library does not count malformed heads
			ended[stream] = true
		}
		if used[stream] = used[stream] || op%16 < 5; ended[stream] {
			program = program[4:]
			steps = append(steps, "-")
			continue
		}
		p.step(op%16, arg, stream, program[3], ended)
		program = program[4:]
		seen := visible(p.frames(), ended)
		steps = append(steps, fmt.Sprintf("%d(%d, %d): %s", op%16, arg, stream, seen))
		if strings.Contains(seen, "GOAWAY") || p.over() {
			break
		}
	}
	_ = p.conn.Close()
	time.Sleep(10 * time.Second) // timers of the library
	return append(steps, "the end")
}

func (p *peer) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// step sends one frame, or a header block.
func (p *peer) step(op, arg byte, stream uint32, more byte, ended map[uint32]bool) {
	_ = p.conn.SetWriteDeadline(time.Now().Add(time.Second))
	switch op {
	case 0, 1, 2, 3:
		end := more&1 == 1
		fields := slices.Clone(heads[int(arg)%len(heads)])
		if stream%2 == 0 { // the number is wrong already
			fields = get()
		}
		p.opened = max(p.opened, stream)
		for i := 0; i < len(fields); i += 2 {
			if fields[i] == ":path" && fields[i+1] == "/" {
				fields[i+1] = fmt.Sprint("/", stream)
			}
		}
		p.ask(stream, end, fields...)
	case 4:
		p.opened = max(p.opened, stream)
		p.ask(stream, more&1 == 1, "x-sum", fmt.Sprint(arg))
	case 5, 6, 7:
		_ = p.framer.WriteDataPadded(stream, more&1 == 1, make([]byte, int(arg)*int(more)), make([]byte, more>>4))
	case 8:
		_ = p.framer.WriteRSTStream(stream, http2.ErrCode(arg%14))
		if stream%2 == 1 {
			ended[stream] = true
		}
	case 9:
		_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingID(arg % 10), Val: [...]uint32{0, 1, 100, 16384, 65535, 1 << 24, 1<<31 - 1, 1 << 31}[more%8]})
	case 10:
		_ = p.framer.WritePing(arg&1 == 1, [8]byte{more})
	case 11:
		by := [...]uint32{0, 1, 1 << 20, 1<<31 - 1}[more%4]
		if by == 0 && (stream > p.opened || stream%2 == 0) { // the library looks at the increment first
			by = 1
		}
		_ = p.framer.WriteWindowUpdate(stream*uint32(arg&1), by)
	case 12:
		_ = p.framer.WritePriority(stream, http2.PriorityParam{StreamDep: uint32(more % 16), Weight: arg})
	case 13:
		_ = p.framer.WriteRawFrame(http2.FrameType(0x20|arg), http2.Flags(more), stream, []byte("unknown"))
	case 14:
		if arg < 8 {
			_ = p.framer.WriteGoAway(stream, http2.ErrCode(more%14), []byte("debug"))
		}
	case 15:
		p.rare(arg, stream, more)
	}
}

// rare sends a frame of a kind that usually ends the connection.
func (p *peer) rare(arg byte, stream uint32, more byte) {
	if more > 20 {
		return
	}
	kind := http2.FrameType(arg % 10)
	payload := binary.BigEndian.AppendUint32(nil, uint32(more))[:more%5]
	switch kind {
	case http2.FrameData, http2.FrameHeaders: // an even number is looked at before the block ends
		payload, stream = nil, stream|1
	case http2.FramePushPromise:
		payload = make([]byte, 8)
	}
	_ = p.framer.WriteRawFrame(kind, 0, stream*uint32(more&1), payload)
}

// visible evens out frames, and notes the streams that have ended.
func visible(frames []string, ended map[uint32]bool) string {
	var out []string
	for _, f := range frames {
		var stream uint32
		_, _ = fmt.Sscan(f, &stream)
		if strings.Contains(f, "RST_STREAM") || strings.HasSuffix(f, " end") {
			ended[stream] = true
		}
		if strings.HasPrefix(f, "GOAWAY") {
			f = f[:6] + f[strings.LastIndex(f, " "):] // not the last stream: a malformed one does not count there
		}
		if f = strings.Replace(f, "DATA answer end", "DATA answer", 1); !strings.HasSuffix(f, "DATA  end") {
			out = append(out, f) // the end may come with the last content or behind it
		}
	}
	sort.Strings(out)
	return strings.Join(out, ", ")
}
