package relaytest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/handshake"
)

// RunHTTP2 walks what holds for clients of HTTP/2 on a side, whose rig's Dial returns connections on which HTTP/2 was negotiated. The server
// speaks HTTP/1.1.
func RunHTTP2(t *testing.T, side Side) {
	for name, test := range map[string]func(*testing.T, Side){
		"requests with two meanings": refusesTwoMeanings2, "one message": sameMessage, "bodies of another length": otherLength, "responses": responses2,
		"interim responses": interim2, "WebSockets": connects, "requests sent again": sentAgain2, "a client that leaves": leaves, "answers before the body": answeredEarly2,
		"logins": logins2,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, side)
		})
	}
}

// visitor is a client that writes the frames of HTTP/2.
type visitor struct {
	t *testing.T
	*http2.Framer
	net.Conn
	rig     Rig
	block   bytes.Buffer
	encoder *hpack.Encoder
	last    uint32
}

func (r Rig) visit(t *testing.T) *visitor {
	t.Helper()
	c, _ := r.dial(t)
	v := &visitor{t: t, Framer: http2.NewFramer(c, c), Conn: c, rig: r}
	v.ReadMetaHeaders, v.AllowIllegalWrites = hpack.NewDecoder(4096, nil), true
	v.encoder = hpack.NewEncoder(&v.block)
	_, _ = io.WriteString(c, http2.ClientPreface)
	if err := v.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return v
}

// ask begins a request: lines of names and values, in which HOST is the server's name. end means that it has no body.
func (v *visitor) ask(end bool, head string) (stream uint32) {
	v.last += 2
	v.headers(v.last-1, end, head)
	return v.last - 1
}

func (v *visitor) headers(stream uint32, end bool, head string) {
	v.t.Helper()
	v.block.Reset()
	for line := range strings.SplitSeq(strings.ReplaceAll(head, "HOST", v.rig.Host), "\n") {
		name, value, _ := strings.Cut(line, "= ")
		_ = v.encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
	if err := v.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: v.block.Bytes(), EndStream: end, EndHeaders: true}); err != nil {
		v.t.Error(err)
	}
}

// reply is what came on a stream.
type reply struct {
	status   string // of the last head that is no interim one, or "reset CODE", or "gone" without either
	heads    []*http2.MetaHeadersFrame
	body     string
	trailers string
	whole    bool // it ended with END_STREAM
}

func (r *reply) value(name string) string {
	for _, h := range r.heads {
		for _, f := range h.Fields {
			if f.Name == name {
				return f.Value
			}
		}
	}
	return ""
}

// step reads one frame, and reports whether the stream has ended.
func (v *visitor) step(r *reply, stream uint32) (ended bool) {
	f, err := v.ReadFrame()
	if err != nil {
		if r.status == "" {
			r.status = "gone"
		}
		return true
	}
	if s, ok := f.(*http2.SettingsFrame); ok && !s.IsAck() {
		_ = v.WriteSettingsAck()
	}
	if g, ok := f.(*http2.GoAwayFrame); ok && g.ErrCode != http2.ErrCodeNo {
		r.status = "reset " + g.ErrCode.String()
		return true
	}
	if f.Header().StreamID != stream {
		return false
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		r.heads = append(r.heads, f)
		if status := f.PseudoValue("status"); status != "" {
			r.status = status
		} else {
			for _, t := range f.Fields {
				r.trailers += t.Name + "=" + t.Value + " "
			}
		}
		r.whole = f.StreamEnded()
	case *http2.DataFrame:
		r.body += string(f.Data())
		r.whole = f.StreamEnded()
	case *http2.RSTStreamFrame:
		if r.status == "" {
			r.status = "reset " + f.ErrCode.String()
		}
		return true
	}
	return r.whole
}

// reply reads what comes on a stream until it ends.
func (v *visitor) reply(stream uint32) (r reply) {
	for !v.step(&r, stream) {
	}
	return r
}

const (
	get2  = ":method= GET\n:scheme= https\n:authority= HOST\n:path= /"
	post2 = ":method= POST\n:scheme= https\n:authority= HOST\n:path= /"
)

var twoMeanings2 = map[string]string{
	"capitals":                get2 + "\nX-Upper= 1",
	"Connection":              get2 + "\nconnection= x-a\nx-a= 1",
	"Keep-Alive":              get2 + "\nkeep-alive= 1",
	"Proxy-Connection":        get2 + "\nproxy-connection= keep-alive",
	"Upgrade":                 get2 + "\nupgrade= h2c",
	"Transfer-Encoding":       get2 + "\ntransfer-encoding= chunked",
	"TE other than trailers":  get2 + "\nte= gzip",
	"two paths":               get2 + "\n:path= /admin",
	"two methods":             ":method= POST\n" + get2,
	"two authorities":         get2 + "\n:authority= evil.example.com",
	"no path":                 ":method= GET\n:scheme= https\n:authority= HOST",
	"empty path":              ":method= GET\n:scheme= https\n:authority= HOST\n:path= ",
	"no method":               ":scheme= https\n:authority= HOST\n:path= /",
	"no scheme":               ":method= GET\n:authority= HOST\n:path= /",
	"another scheme":          ":method= GET\n:scheme= ftp\n:authority= HOST\n:path= /",
	"an unknown pseudo-field": get2 + "\n:other= 1",
	"a status":                get2 + "\n:status= 200",
	"pseudo-field last":       ":method= GET\n:scheme= https\n:authority= HOST\nx-a= 1\n:path= /",
	"another Host":            get2 + "\nhost= evil.example.com",
	"two Hosts":               get2 + "\nhost= HOST\nhost= HOST",
	"no authority":            ":method= GET\n:scheme= https\n:path= /",
	"a user":                  ":method= GET\n:scheme= https\n:authority= user@HOST\n:path= /",
	"authority with a path":   ":method= GET\n:scheme= https\n:authority= HOST/admin\n:path= /",
	"path with a line end":    ":method= GET\n:scheme= https\n:authority= HOST\n:path= / HTTP/1.1\r",
	"path with a space":       ":method= GET\n:scheme= https\n:authority= HOST\n:path= /a b",
	"relative path":           ":method= GET\n:scheme= https\n:authority= HOST\n:path= admin",
	"path with a fragment":    ":method= GET\n:scheme= https\n:authority= HOST\n:path= /a#b",
	"absolute path":           ":method= GET\n:scheme= https\n:authority= HOST\n:path= http://evil.example.com/",
	"method with a space":     ":method= GET /x\n:scheme= https\n:authority= HOST\n:path= /",
	"asterisk for a GET":      ":method= GET\n:scheme= https\n:authority= HOST\n:path= *",
	"line end in a value":     get2 + "\nx-a= 1\rx-b: 2",
	"NUL in a value":          get2 + "\nx-a= 1\x00",
	"colon in a name":         get2 + "\nx-a:b= 1",
	"space in a name":         get2 + "\nx a= 1",
	"empty name":              get2 + "\n= 1",
	"a length without a body": get2 + "\ncontent-length= 5",
	"two lengths":             get2 + "\ncontent-length= 0\ncontent-length= 5",
	"length with a sign":      get2 + "\ncontent-length= +0",
	"a list of lengths":       get2 + "\ncontent-length= 0, 0",
	"CONNECT":                 ":method= CONNECT\n:authority= HOST",
	"CONNECT with a path":     ":method= CONNECT\n:scheme= https\n:authority= HOST\n:path= /",
	"a protocol for a GET":    get2 + "\n:protocol= websocket",
	"another protocol":        ":method= CONNECT\n:protocol= connect-udp\n:scheme= https\n:authority= HOST\n:path= /",
	"many fields":             get2 + strings.Repeat("\nx-a= 1", 200),
	"a large head":            get2 + strings.Repeat("\nx-a= "+strings.Repeat("y", 1<<10), 70),
}

// refusesTwoMeanings2 sends requests that two programs could read in two ways, or that HTTP/2 forbids: each is refused before a byte
// reaches the server.
func refusesTwoMeanings2(t *testing.T, side Side) {
	var got atomic.Int64
	rig := side(t, func(_ net.Conn, in *bufio.Reader) {
		for {
			if _, err := in.Discard(1); err != nil {
				return
			}
			got.Add(1)
		}
	})
	for label, head := range twoMeanings2 {
		v := rig.visit(t)
		if r := v.reply(v.ask(true, head)); strings.HasPrefix(r.status, "2") || strings.HasPrefix(r.status, "50") && r.status != "501" || r.status == "gone" {
			t.Errorf("%s: %s", label, r.status)
		}
		v.Close()
	}
	if n := got.Load(); n > 0 {
		t.Errorf("the server received %d bytes", n)
	}
}

// sameMessage: the server gets each request as one over HTTP/1.1, framed once, with the content and the fields of the client.
func sameMessage(t *testing.T, side Side) {
	for label, c := range map[string]struct{ head, body, want string }{
		"GET":           {get2, "", "GET / HTTP/1.1 [] Host:1"},
		"query":         {":method= GET\n:scheme= https\n:authority= HOST\n:path= /a%2fb/../c;d?e=%00&f", "", "GET /a%2fb/../c;d?e=%00&f HTTP/1.1 [] Host:1"},
		"Host as well":  {get2 + "\nhost= HOST", "", "GET / HTTP/1.1 [] Host:1"},
		"cookies":       {get2 + "\ncookie= a=1\nx-a= 1\ncookie= b=2", "", "GET / HTTP/1.1 [] Host:1 Cookie:a=1; b=2 X-A:1"},
		"trailers":      {get2 + "\nte= trailers", "", "GET / HTTP/1.1 [] Host:1 Te:trailers"},
		"two values":    {get2 + "\naccept= text/html\naccept= */*", "", "GET / HTTP/1.1 [] Host:1 Accept:text/html,*/*"},
		"a length":      {post2 + "\ncontent-length= 5", "hello", "POST / HTTP/1.1 [hello] Host:1 Content-Length:5"},
		"no length":     {post2, "hello", "POST / HTTP/1.1 [hello] Host:1 Transfer-Encoding:chunked"},
		"empty":         {post2 + "\ncontent-length= 0", "", "POST / HTTP/1.1 [] Host:1 Content-Length:0"},
		"looks chunked": {post2, "0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n", "POST / HTTP/1.1 [0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n] Host:1 Transfer-Encoding:chunked"},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			rig := side(t, func(c net.Conn, in *bufio.Reader) {
				for {
					text, err := requestText(in)
					if err != nil {
						return
					}
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
				}
			})
			v := rig.visit(t)
			for range 2 { // the second over a connection that was kept
				id := v.ask(c.body == "", c.head)
				if c.body != "" {
					_ = v.WriteData(id, true, []byte(c.body))
				}
				if r := v.reply(id); r.body != c.want {
					t.Errorf("%s %q instead of %q", r.status, r.body, c.want)
				}
			}
		})
	}
}

// requestText reads a request, and returns its line, content and the fields that the rows are about, with how many Hosts there are.
func requestText(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	hosts, fields := 0, map[string][]string{}
	for {
		field, err := in.ReadString('\n')
		if err != nil {
			return "", err
		}
		name, value, found := strings.Cut(strings.TrimRight(field, "\r\n"), ": ")
		if !found {
			break
		}
		if name = http.CanonicalHeaderKey(name); name == "Host" {
			hosts++
		}
		fields[name] = append(fields[name], value)
	}
	text := strings.TrimRight(line, "\r\n")
	r, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(line+"Host: x\r\n"+framing(fields)+"\r\n"), in)))
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	text += fmt.Sprintf(" [%s] Host:%d", body, hosts)
	for _, name := range []string{"Accept", "Content-Length", "Cookie", "Te", "Transfer-Encoding", "X-A"} {
		if values := fields[name]; values != nil {
			text += " " + name + ":" + strings.Join(values, ",")
		}
	}
	return text, nil
}

// framing returns the fields that frame a body.
func framing(fields map[string][]string) (head string) {
	for _, name := range []string{"Content-Length", "Transfer-Encoding"} {
		for _, value := range fields[name] {
			head += name + ": " + value + "\r\n"
		}
	}
	return head
}

// otherLength: a body that is longer or shorter than its length is not taken for a whole one.
func otherLength(t *testing.T, side Side) {
	for label, body := range map[string]string{"longer": "hello world", "shorter": "hi"} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			whole := make(chan bool, 1)
			rig := side(t, func(_ net.Conn, in *bufio.Reader) {
				r, err := http.ReadRequest(in)
				if err == nil {
					_, err = io.Copy(io.Discard, r.Body)
				}
				whole <- err == nil
			})
			v := rig.visit(t)
			id := v.ask(false, post2+"\ncontent-length= 5")
			_ = v.WriteData(id, true, []byte(body))
			if r := v.reply(id); r.status != "reset PROTOCOL_ERROR" && r.status != "400" {
				t.Error(r.status)
			}
			v.Close()
			select {
			case got := <-whole:
				if got {
					t.Error("the server takes it for a whole request")
				}
			case <-time.After(10 * time.Millisecond): // no byte has arrived
			}
		})
	}
}

// responses2 come with the same meaning, or not at all.
func responses2(t *testing.T, side Side) {
	for label, tt := range responseRows {
		if strings.Contains(tt.ask, "HTTP/1.0") {
			continue
		}
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			rig := side(t, answers(tt.answer))
			v := rig.visit(t)
			for range 2 {
				method, _, _ := strings.Cut(tt.ask+"GET ", " ")
				r := v.reply(v.ask(true, strings.Replace(get2, "GET", method, 1)))
				status := fmt.Sprint(tt.status)
				switch {
				case tt.broken && r.whole, !tt.broken && (!r.whole || r.status != status), tt.status == 200 && !tt.broken && r.body != tt.body:
					t.Errorf("%+v", r)
				case tt.status == 204 && r.value("content-length") != "", tt.status == 304 && r.value("content-length") != "":
					t.Errorf("a length of no content: %+v", r.heads[0].Fields)
				case label == "chunks" && r.trailers != "x-sum=1 ":
					t.Errorf("trailers: %q", r.trailers)
				}
			}
		})
	}
	rig := side(t, answers(begins+"Transfer-Encoding: chunked\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: 1\r\nUpgrade: h2c\r\n\r\n0\r\nContent-Length: 5\r\nX-Sum: 7\r\n\r\n"))
	v := rig.visit(t)
	if r := v.reply(v.ask(true, get2)); r.value("x-hop")+r.value("keep-alive")+r.value("connection")+r.value("upgrade")+r.value("transfer-encoding") != "" || r.trailers != "x-sum=7 " {
		t.Errorf("%+v", r)
	}
}

// interim2: interim responses pass, up to a number.
func interim2(t *testing.T, side Side) {
	const hint = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 5\r\n\r\n"
	v := side(t, answers(hint+ok)).visit(t)
	if r := v.reply(v.ask(true, get2)); len(r.heads) != 2 || r.heads[0].PseudoValue("status") != "103" || r.value("link") != "</a>" || len(r.heads[0].Fields) != 2 || r.body != "ok" {
		t.Errorf("%+v", r)
	}
	v = side(t, answers(strings.Repeat(hint, 40)+ok)).visit(t)
	if r := v.reply(v.ask(true, get2)); r.status != "502" {
		t.Errorf("after 40 interim responses: %+v", r)
	}
}

// connects: an extended CONNECT (RFC 8441) becomes the handshake of a WebSocket, and succeeds only if that does.
func connects(t *testing.T, side Side) {
	const ask = ":method= CONNECT\n:protocol= websocket\n:scheme= https\n:authority= HOST\n:path= /ws\nsec-websocket-version= 13"
	for label, tt := range map[string]struct{ accept, answer, status string }{
		"a handshake":       {"", "101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: KEY\r\n\r\n", "200"},
		"another key":       {"other", "101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: KEY\r\n\r\n", "502"},
		"to something else": {"", "101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tunnel\r\nSec-WebSocket-Accept: KEY\r\n\r\n", "502"},
		"success without":   {"", "200 OK\r\nContent-Length: 2\r\n\r\nok", "502"},
		"no content":        {"", "204 No Content\r\n\r\n", "502"},
		"refused":           {"", "403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "403"},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			rig := side(t, func(c net.Conn, in *bufio.Reader) {
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				key := r.Header.Get("Sec-Websocket-Key")
				if r.Method != http.MethodGet || r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-Websocket-Version") != "13" || key == "" {
					t.Errorf("%s %+v", r.Method, r.Header)
				}
				if tt.accept != "" {
					key = tt.accept
				}
				_, _ = io.WriteString(c, "HTTP/1.1 "+strings.ReplaceAll(tt.answer, "KEY", handshake.Accept(key)))
				_, _ = io.Copy(c, in) // the echo
			})
			v := rig.visit(t)
			id := v.ask(false, ask)
			var r reply
			for r.status == "" && !v.step(&r, id) {
			}
			if r.status != tt.status || r.value("sec-websocket-accept")+r.value("upgrade")+r.value("connection") != "" {
				t.Errorf("%+v", r)
			}
			if tt.status != "200" {
				return
			}
			_ = v.WriteData(id, false, []byte("thro"))
			_ = v.WriteData(id, true, []byte("ugh"))
			for !v.step(&r, id) {
			}
			if r.body != "through" || !r.whole {
				t.Errorf("%q came back, end %v", r.body, r.whole)
			}
		})
	}
	v := side(t, func(c net.Conn, in *bufio.Reader) {
		if r, err := http.ReadRequest(in); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "+handshake.Accept(r.Header.Get("Sec-Websocket-Key"))+"\r\n\r\n")
		}
	}).visit(t)
	if r := v.reply(v.ask(true, get2+"\nsec-websocket-key= dGhlIHNhbXBsZSBub25jZQ==\nsec-websocket-version= 13")); r.status != "502" {
		t.Errorf("a switch that was not asked for: %+v", r)
	}
}

// sentAgain2: a request that the server may have acted on is not repeated.
func sentAgain2(t *testing.T, side Side) {
	for method, again := range map[string]bool{"GET": true, "HEAD": true, "OPTIONS": true, "POST": false, "PUT": false, "DELETE": false} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			var times, broken atomic.Int64
			rig := side(t, func(c net.Conn, in *bufio.Reader) {
				for first := true; ; first = false {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					if r.Method == method {
						times.Add(1)
					}
					if r.Method == method && !first {
						broken.Add(1)
						return // in the middle of it
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
			v := rig.visit(t)
			first := "GET"
			if method == first {
				first = "HEAD"
			}
			if r := v.reply(v.ask(true, strings.Replace(get2, "GET", first, 1))); r.status != "200" {
				t.Fatalf("%+v", r)
			}
			var r reply
			for end := time.Now().Add(time.Minute); broken.Load() == 0 && time.Now().Before(end); { // the connection may be kept after its response came
				times.Store(0)
				r = v.reply(v.ask(true, strings.Replace(get2, "GET", method, 1)))
			}
			status, want := "502", int64(1)
			if again {
				status, want = "200", 2
			}
			if n := times.Load(); r.status != status || n != want {
				t.Errorf("%s; asked %d times, want %d", r.status, n, want)
			}
		})
	}
}

// leaves: a client that resets its request, or disconnects, ends the server's connection: the server must not take a part of a body for the
// whole, and need not go on with an answer.
func leaves(t *testing.T, side Side) {
	for label, end := range map[string]func(*visitor, uint32){
		"reset":        func(v *visitor, id uint32) { _ = v.WriteRSTStream(id, http2.ErrCodeCancel) },
		"disconnected": func(v *visitor, _ uint32) { _ = v.Close() },
	} {
		for _, head := range []string{get2, post2, post2 + "\ncontent-length= 10"} {
			t.Run(label, func(t *testing.T) {
				t.Parallel()
				begun, ended := make(chan struct{}), make(chan error, 1)
				rig := side(t, func(_ net.Conn, in *bufio.Reader) {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					if r.Method == http.MethodPost {
						_, _ = io.ReadFull(r.Body, make([]byte, 5))
					}
					close(begun)
					rest, err := io.ReadAll(r.Body)
					if r.Method == http.MethodGet {
						_, err = in.ReadByte()
					}
					if err == nil {
						err = fmt.Errorf("%d bytes", len(rest))
					} else {
						err = nil
					}
					ended <- err
				})
				v := rig.visit(t)
				id := v.ask(head == get2, head)
				if head != get2 {
					_ = v.WriteData(id, false, []byte("hello"))
				}
				<-begun
				end(v, id)
				if err := <-ended; err != nil {
					t.Error("the server takes it for a whole request:", err)
				}
			})
		}
	}
}

// answeredEarly2: an answer that comes before the request is complete reaches the client whole, and the server's connection is not
// used again.
func answeredEarly2(t *testing.T, side Side) {
	var more atomic.Int64
	rig := side(t, func(c net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		_, _ = io.WriteString(c, ok)
		for {
			line, err := in.ReadString('\n')
			if strings.Contains(line, "HTTP/1.1") {
				more.Add(1)
			}
			if err != nil {
				return
			}
		}
	})
	v := rig.visit(t)
	for _, head := range []string{post2, post2 + "\ncontent-length= 100"} {
		id := v.ask(false, head)
		_ = v.WriteData(id, false, []byte("hello"))
		if r := v.reply(id); r.status != "200" || r.body != "ok" || !r.whole {
			t.Errorf("%+v", r)
		}
	}
	if n := more.Load(); n > 0 {
		t.Errorf("%d further requests on a connection that has half of one", n)
	}
}

// logins2: a login of the connection is left to HTTP/1.1.
func logins2(t *testing.T, side Side) {
	var got atomic.Int64
	v := side(t, func(_ net.Conn, in *bufio.Reader) {
		if _, err := in.ReadByte(); err == nil {
			got.Add(1)
		}
	}).visit(t)
	if r := v.reply(v.ask(true, get2+"\nauthorization= NTLM TlRMTVNTUAABAAAA")); r.status != "reset HTTP_1_1_REQUIRED" || got.Load() > 0 {
		t.Errorf("%+v; the server received %d bytes", r, got.Load())
	}
}
