package ingress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/internal/handshake"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/relay/relaytest"
)

// script exposes a program in a box that passes each of its connections to serve, and returns its number of connections.
func (f *fixture) script(t *testing.T, host string, serve func(net.Conn, *bufio.Reader)) *atomic.Int64 {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	conns := new(atomic.Int64)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				serve(c, bufio.NewReader(c))
			}()
		}
	}()
	f.set(host+domain, Target{ID: host, Box: "box1", Addr: netip.MustParseAddrPort(ln.Addr().String()), Auth: Auth{Open: true}})
	return conns
}

// answers reads requests, and answers each with the text.
func answers(text string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, in *bufio.Reader) {
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}
}

// A response of a program in a box arrives with the same meaning, or not at all.
func TestResponsesArriveWhole(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, tt := range map[string]struct {
		answer, method, body string
		status               int
		broken               bool // the client must recognize the body as incomplete
	}{
		"a length":                  {answer: ok + "Content-Length: 5\r\n\r\nhello", body: "hello", status: 200},
		"chunks":                    {answer: ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nX-Sum: 1\r\n\r\n", body: "hello", status: 200},
		"no body":                   {answer: "HTTP/1.1 204 No Content\r\n\r\n", status: 204},
		"not modified":              {answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", status: 304},
		"to HEAD":                   {answer: ok + "Content-Length: 5\r\n\r\n", method: "HEAD", status: 200},
		"an interim response first": {answer: "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok + "Content-Length: 2\r\n\r\nhi", body: "hi", status: 200},
		"two lengths":               {answer: ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", status: 502},
		"a length and chunks":       {answer: ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 502},
		"a bare LF":                 {answer: "HTTP/1.1 200 OK\nContent-Length: 0\n\n", status: 502},
		"a length twice":            {answer: ok + "Content-Length: 5\r\nContent-Length: 5, 5\r\n\r\nhello", body: "hello", status: 200},
		"identity":                  {answer: ok + "Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", body: "hello", status: 200},
		"padded":                    {answer: ok + "Transfer-Encoding: chunked,\r\n\r\n5   \r\nhello\r\n0   \r\n\r\n", body: "hello", status: 200},
		"chunked twice":             {answer: ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", status: 502},
		"not HTTP":                  {answer: "SSH-2.0-OpenSSH_9.2\r\n", status: 502},
		"a bad chunk":               {answer: ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", status: 200, broken: true},
		"an upgrade nobody asked":   {answer: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", status: 502},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, nil)
			f.script(t, "one", answers(tt.answer))
			r, _ := http.NewRequest(cmpOr(tt.method, "GET"), "https://one"+domain+"/", nil)
			resp, err := f.client(t, false).Do(r)
			if err != nil {
				if !tt.broken {
					t.Error(err)
				}
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != tt.status || (err != nil) != tt.broken || tt.status == 200 && !tt.broken && string(body) != tt.body {
				t.Errorf("%s, %q, %v", resp.Status, body, err)
			}
			if strings.Contains(name, "chunks") && tt.status == 200 && resp.Trailer.Get("X-Sum") != "1" {
				t.Errorf("trailers %v", resp.Trailer)
			}
		})
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// A response that the box breaks off also breaks off for the client, whatever its framing.
func TestTruncatedResponsesAreNotWhole(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{"a length": "Content-Length: 100\r\n", "chunks": "Transfer-Encoding: chunked\r\n"} {
		f := start(t, nil)
		f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
			_, _ = http.ReadRequest(in)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+head+"\r\n5\r\nhello\r\n")
		})
		for _, minor := range []string{"1", "0"} {
			c := f.connectTo(t, "one"+domain)
			_, _ = io.WriteString(c, "GET / HTTP/1."+minor+"\r\nHost: one.preview.test\r\n\r\n")
			answer, err := io.ReadAll(c)
			if err == nil && (name == "a length" && len(answer) > 100 || strings.HasSuffix(string(answer), "0\r\n\r\n")) || err == nil && minor == "0" {
				t.Errorf("%s to HTTP/1.%s: %q looks whole (%v)", name, minor, answer, err)
			}
		}
	}
}

// Bytes that the box sends after a response are not used as the response to another client's request.
func TestNothingIsLeftForTheNextRequest(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	poison := "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
	conns := f.script(t, "one", answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"+poison))
	for range 5 {
		if _, body := get(t, f.client(t, false), "https://one"+domain+"/", nil); body != "hi" {
			t.Fatalf("answered %q", body)
		}
	}
	if conns.Load() != 5 {
		t.Errorf("%d connections for 5 requests", conns.Load())
	}
	// The same on a connection that was kept after an earlier response.
	conns = f.script(t, "two", func(c net.Conn, in *bufio.Reader) {
		for _, text := range []string{"", poison, "", ""} {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"+text)
		}
	})
	for range 6 {
		if _, body := get(t, f.client(t, false), "https://two"+domain+"/", nil); body != "hi" {
			t.Fatalf("answered %q after an earlier response", body)
		}
	}
	if conns.Load() < 3 { // more if a request came before the connection was kept
		t.Errorf("%d connections for 6 requests, and the second answer of each has surplus bytes", conns.Load())
	}
}

// Connections to a box are reused, and an idempotent request succeeds although the box has just closed its connection.
func TestConnectionsToTheBoxAreKept(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	conns := f.script(t, "one", answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"))
	client := f.client(t, false)
	for range 5 {
		if _, body := get(t, client, "https://one"+domain+"/", nil); body != "hi" {
			t.Fatalf("answered %q", body)
		}
	}
	if conns.Load() != 1 {
		t.Errorf("%d connections for 5 requests", conns.Load())
	}
	once := f.script(t, "once", func(c net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		_, _ = http.ReadRequest(in) // the connection closes
	})
	for i := range 4 {
		if _, body := get(t, client, "https://once"+domain+"/", nil); body != "hi" {
			t.Fatalf("request %d: %q", i, body)
		}
	}
	if once.Load() < 4 {
		t.Errorf("%d connections", once.Load())
	}
}

// A connection of one incarnation of a URL serves no other.
func TestConnectionsAreNotSharedBetweenIncarnations(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.script(t, "one", answers("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold"))
	client := f.client(t, false)
	if _, body := get(t, client, "https://one"+domain+"/", nil); body != "old" {
		t.Fatal(body)
	}
	f.script(t, "one", answers("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew"))
	if _, body := get(t, client, "https://one"+domain+"/", nil); body != "new" {
		t.Errorf("answered %q", body)
	}
}

// Several requests that arrive in one packet are answered in order.
func TestPipelinedRequests(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	c := f.connectTo(t, "one"+domain)
	var text strings.Builder
	for i := range 10 {
		body := strings.Repeat(strconv.Itoa(i), i)
		text.WriteString("POST /" + strconv.Itoa(i) + " HTTP/1.1\r\nHost: one.preview.test\r\nContent-Length: " + strconv.Itoa(i) + "\r\n\r\n" + body)
	}
	if _, err := io.WriteString(c, text.String()); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for i := range 10 {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(i, err)
		}
		body, err := io.ReadAll(resp.Body)
		if want := "hello " + strings.Repeat(strconv.Itoa(i), i); err != nil || string(body) != want {
			t.Fatalf("response %d is %q, %v", i, body, err)
		}
	}
}

// A client that expects 100 sends its body when the box asks for it, and does not send it if the box refuses.
func TestExpectations(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.script(t, "asks", func(c net.Conn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err != nil || r.Header.Get("Expect") != "100-continue" {
			t.Errorf("%v, %v", r, err)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+string(body))
	})
	f.script(t, "refuses", func(c net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
		_, _ = io.WriteString(c, "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
		if n, _ := in.Read(make([]byte, 1)); n > 0 {
			t.Error("the body arrived all the same")
		}
	})
	head := func(host string) string {
		return "POST / HTTP/1.1\r\nHost: " + host + domain + "\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
	}
	c := f.connect(t, false, "")
	_, _ = io.WriteString(c, head("asks"))
	in := bufio.NewReader(c)
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = in.ReadString('\n')
	_, _ = io.WriteString(c, "hello")
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); string(body) != "hello" {
		t.Errorf("%q", body)
	}
	c = f.connect(t, false, "")
	_, _ = io.WriteString(c, head("refuses"))
	if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 417") || !strings.Contains(string(answer), "Connection: close") {
		t.Errorf("%q, %v", answer, err)
	}
}

func (a *active) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for r := a.open; r != nil; r = r.next {
		n++
	}
	return n
}

func (f *fixture) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// A cached credential is not valid for another URL on the same connection, nor after it was replaced.
func TestRememberedCredentials(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Bearer: digest(BearerDigest("tok-1"))})
	f.expose("two", box.Server, Auth{Bearer: digest(BearerDigest("tok-2"))})
	c := f.connect(t, false, "")
	in := bufio.NewReader(c)
	ask := func(host, token string) int {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+domain+"\r\nAuthorization: Bearer "+token+"\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if one, again, two, other := ask("one", "tok-1"), ask("one", "tok-1"), ask("two", "tok-1"), ask("two", "tok-2"); one != 200 || again != 200 || two != 401 || other != 200 {
		t.Fatal(one, again, two, other)
	}
	f.expose("two", box.Server, Auth{Bearer: digest(BearerDigest("tok-3"))})
	if status := ask("two", "tok-2"); status != 401 {
		t.Errorf("a replaced credential is answered with %d", status)
	}
}

// An upload of any size passes, and its event contains the size.
func TestLargeUploads(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	f.expose("one", server, Auth{Open: true})
	const size = 8 << 20
	for _, length := range []int64{size, -1} {
		r, _ := http.NewRequest(http.MethodPost, "https://one"+domain+"/", io.LimitReader(zeros{}, size))
		r.ContentLength = length
		resp, err := f.client(t, false).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != strconv.Itoa(size) {
			t.Errorf("%q, %v", body, err)
		}
		resp.Body.Close()
	}
	f.event(t, func(e audit.Event) bool { return e.BytesIn == size })
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// A handshake with a large head, and with bytes behind it, becomes a WebSocket like any other.
func TestWebSocketWithALargeHead(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "+handshake.Accept(r.Header.Get("Sec-WebSocket-Key"))+"\r\n\r\n")
		_, _ = io.Copy(c, in)
	})
	for range 10 {
		c := f.connectTo(t, "one"+domain)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: one.preview.test\r\nX-Large: "+strings.Repeat("x", 40000)+
			"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\nearly")
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(resp, err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(in, got); err != nil || string(got) != "early" {
			t.Errorf("%q, %v", got, err)
		}
		c.Close()
	}
}

// Fields that a box may not set in a head are also removed from trailers.
func TestTrailersOfABox(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.script(t, "one", answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nSet-Cookie: a=b; Domain=preview.test\r\nAlt-Svc: h3=\":1\"\r\nClear-Site-Data: \"*\"\r\nX-Sum: 1\r\n\r\n"))
	c := f.connectTo(t, "one"+domain)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: one.preview.test\r\nConnection: close\r\n\r\n")
	answer, _ := io.ReadAll(c)
	if text := string(answer); !strings.HasSuffix(text, "0\r\nX-Sum: 1\r\n\r\n") {
		t.Errorf("answered %q", text)
	}
}

// The box sees that its client has gone, and is not kept busy by a client that gave up.
func TestDisconnectsReachTheBox(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	gone := make(chan error, 2)
	f.script(t, "one", func(_ net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
		_, err := in.ReadByte()
		gone <- err
	})
	f.script(t, "upload", func(_ net.Conn, in *bufio.Reader) {
		r, _ := http.ReadRequest(in)
		_, err := io.Copy(io.Discard, r.Body)
		gone <- err
	})
	for host, more := range map[string]string{"one": "", "upload": "Content-Length: 100\r\n"} {
		c := f.connectTo(t, host+domain)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+domain+"\r\n"+more+"\r\n")
		if host == "upload" {
			_, _ = io.WriteString(c, "some of it")
		} else {
			f.await(t, "a connection to the box", func() bool { return f.active.count() == 1 })
		}
		c.Close()
		select {
		case err := <-gone:
			if err == nil {
				t.Errorf("%s: the box takes what it has for the whole", host)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: the box was not told", host)
		}
	}
}

// Revocation cuts a request at any stage: connecting to the box, awaiting its response, or receiving the client's body.
func TestRevocationCutsWhateverIsWaitedFor(t *testing.T) {
	t.Parallel()
	for label, tt := range map[string]struct {
		dial func(context.Context, Target) (net.Conn, error)
		head string
		want string
	}{
		"the dial":   {dial: func(ctx context.Context, _ Target) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, want: "401"},
		"the answer": {want: "401"},
		"the body":   {head: "Content-Length: 100\r\n", want: "401"},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			f := start(t, func(c *Config) { c.Dial = tt.dial })
			f.script(t, "one", func(_ net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) })
			c := f.connectTo(t, "one"+domain)
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: one.preview.test\r\n"+tt.head+"\r\n")
			f.await(t, "the request", func() bool { return f.active.count() == 1 })
			f.remove("one" + domain)
			f.CloseURL("one")
			answer, err := io.ReadAll(c)
			if err == nil && len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 "+tt.want) {
				t.Errorf("%q, %v", answer, err)
			}
			e := f.event(t, reason(name.ReasonURLAuth))
			if e.Verdict != policy.Deny || e.Error != errCut.Error() {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A graceful shutdown lets a response end, closes idle connections immediately, and announces to the client that the
// connection ends.
func TestShutdownLetsResponsesEnd(t *testing.T) {
	t.Parallel()
	f := startWith(t, nil, func(g *Ingress) { g.arrival = 50 * time.Millisecond })
	begun, proceed := make(chan struct{}), make(chan struct{})
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
		close(begun)
		<-proceed
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		_, _ = in.ReadByte()
	})
	idle := f.connectTo(t, "one"+domain)
	c := f.connectTo(t, "one"+domain)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: one.preview.test\r\n\r\n")
	<-begun
	ended := make(chan error, 1)
	go func() { ended <- f.Shutdown(t.Context()) }()
	if _, err := idle.Read(make([]byte, 1)); err == nil {
		t.Error("an idle connection stays open")
	}
	close(proceed)
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasSuffix(string(answer), "hi") || !strings.Contains(string(answer), "Connection: close") {
		t.Errorf("%q, %v", answer, err)
	}
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Half a head, or a silent client, holds a connection only for ReadHeaderTimeout.
func TestSlowHeadsAreCut(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.ReadHeaderTimeout = 50 * time.Millisecond })
	for _, secure := range []bool{true, false} {
		for _, text := range []string{"", "GET / HTTP/1.1\r\nHost: on"} {
			c, err := net.Dial("tcp", map[bool]string{true: f.https, false: f.plain}[secure])
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, text)
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.ReadAll(c); errors.Is(err, context.DeadlineExceeded) || err != nil && strings.Contains(err.Error(), "timeout") {
				t.Errorf("TLS %v, %q: the connection stays open", secure, text)
			}
			c.Close()
		}
	}
}

// If a box breaks off or sends an invalid response during an upload, the box is blamed, not the client.
func TestBoxFailsDuringAnUpload(t *testing.T) {
	t.Parallel()
	for label, answer := range map[string]string{"it closes": "", "it speaks another protocol": "SMTP ready\r\n"} {
		for _, body := range []string{"Expect: 100-continue\r\n\r\n", "\r\n" + strings.Repeat("HEAD", 1000)} {
			f := start(t, nil)
			f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
				_, _ = http.ReadRequest(in)
				_, _ = io.WriteString(c, answer)
			})
			c := f.connectTo(t, "one"+domain)
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: one.preview.test\r\nContent-Length: 1000000\r\n"+body)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatalf("%s: %v", label, err)
			}
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusBadGateway || !strings.Contains(string(text), "does not answer") {
				t.Errorf("%s: %s, %q", label, resp.Status, text)
			}
			f.event(t, func(e audit.Event) bool { return e.Reason == name.ReasonURLUnavailable && e.Status == 502 })
		}
	}
}

// A response that ends just when its request is recorded as open does not disturb the requests behind it.
func TestRequestsThatEndWhenTheyAreRecorded(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const opens = 250 * time.Millisecond // in package audit
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		for i := 0; ; i++ {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			time.Sleep(opens - 2*time.Millisecond + time.Duration(i)*500*time.Microsecond)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		}
	})
	var all sync.WaitGroup
	for range 50 {
		c := f.connectTo(t, "one"+domain)
		all.Go(func() {
			_, _ = io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", 8))
			in := bufio.NewReader(c)
			for range 8 {
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
			}
		})
	}
	all.Wait()
	f.CloseURL("one")
}

// TestSideOfPublicURLs runs the engine's conformance checks of a side.
func TestSideOfPublicURLs(t *testing.T) {
	t.Parallel()
	relaytest.Run(t, func(t *testing.T, server func(net.Conn, *bufio.Reader)) relaytest.Rig {
		f := start(t, nil)
		f.script(t, "one", server)
		return relaytest.Rig{
			Host: "one" + domain, Dial: func() net.Conn { return f.connectTo(t, "one"+domain) },
			Logged: func(path string) (request, response int64) {
				e := f.event(t, func(e audit.Event) bool { return e.Path == path })
				return e.BytesIn, e.BytesOut
			},
		}
	})
}

// TestSideOfPublicURLsOverHTTP2 does the same over HTTP/2.
func TestSideOfPublicURLsOverHTTP2(t *testing.T) {
	t.Parallel()
	relaytest.RunHTTP2(t, func(t *testing.T, server func(net.Conn, *bufio.Reader)) relaytest.Rig {
		f := start(t, nil)
		f.script(t, "one", server)
		return relaytest.Rig{Host: "one" + domain, Dial: func() net.Conn { return f.handshake(t, f.dial(t, f.https), "one"+domain, "h2") }}
	})
}
