package relaytest

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/relay"
)

// digest is a server that answers each request with its method, its target and what its body is.
func digest(c net.Conn, in *bufio.Reader) {
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		text := fmt.Sprintf("%s %s %x", r.Method, r.URL.Path, sha256.Sum256(body))
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text); err != nil {
			return
		}
	}
}

// bodiesWhole: the server gets each body as it was sent, however it comes, and what comes behind it is the next request.
func bodiesWhole(t *testing.T, side Side) {
	rig := side(t, digest)
	pattern := strings.Repeat("0123456789abcde\n", 1<<16)
	for _, size := range []int{0, 1, 5000, 70_000, 1 << 20} {
		for _, piece := range []int{1 << 30, 40_000, 999} {
			for _, chunked := range []bool{false, true} {
				body := pattern[:size]
				text := "POST /first HTTP/1.1\r\nHost: " + rig.Host + "\r\n"
				if chunked {
					text += "Transfer-Encoding: chunked\r\n\r\n" + inChunks(body, 12_345) + "0\r\nX-Sum: 1\r\n\r\n"
				} else {
					text += fmt.Sprintf("Content-Length: %d\r\n\r\n", size) + body
				}
				text += "PUT /second HTTP/1.1\r\nHost: " + rig.Host + "\r\nContent-Length: 3\r\n\r\nend"
				c, in := rig.dial(t)
				go sendPieces(c, text, piece)
				for _, want := range []string{fmt.Sprintf("POST /first %x", sha256.Sum256([]byte(body))), fmt.Sprintf("PUT /second %x", sha256.Sum256([]byte("end")))} {
					resp, err := http.ReadResponse(in, nil)
					if err != nil {
						t.Fatalf("%d bytes in pieces of %d, chunked %v: %v", size, piece, chunked, err)
					}
					if got, err := io.ReadAll(resp.Body); err != nil || string(got) != want {
						t.Errorf("%d bytes in pieces of %d, chunked %v: %s %q, %v, want %q", size, piece, chunked, resp.Status, got, err, want)
					}
				}
				c.Close()
			}
		}
	}
}

func inChunks(body string, size int) string {
	var b strings.Builder
	for len(body) > 0 {
		part := body[:min(size, len(body))]
		body = body[len(part):]
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(part), part)
	}
	return b.String()
}

func sendPieces(c net.Conn, text string, size int) {
	for len(text) > 0 {
		part := text[:min(size, len(text))]
		text = text[len(part):]
		if _, err := io.WriteString(c, part); err != nil {
			return
		}
	}
}

// bothWays: an answer that has begun and the rest of the request pass at the same time, and the connection goes on if both end.
func bothWays(t *testing.T, side Side) {
	rig := side(t, func(c net.Conn, in *bufio.Reader) {
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			buf := make([]byte, 1000)
			for err == nil {
				n := 0
				if n, err = r.Body.Read(buf); n > 0 {
					_, _ = fmt.Fprintf(c, "%x\r\n%s\r\n", n, buf[:n])
				}
			}
			if err == io.EOF {
				_, _ = io.WriteString(c, "0\r\n\r\n")
			}
		}
	})
	for _, chunked := range []bool{false, true} {
		c, in := rig.dial(t)
		framing := "Content-Length: 300000"
		if chunked {
			framing = "Transfer-Encoding: chunked"
		}
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+rig.Host+"\r\n"+framing+"\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("chunked %v: %+v, %v", chunked, resp, err)
		}
		part := make([]byte, 1000)
		for i := range 300 {
			text := strings.Repeat(string(rune('a'+i%26)), 1000)
			if chunked {
				_, _ = io.WriteString(c, "3e8\r\n"+text+"\r\n")
			} else {
				_, _ = io.WriteString(c, text)
			}
			if _, err := io.ReadFull(resp.Body, part); err != nil || string(part) != text {
				t.Fatalf("chunked %v: part %d came back as %.20q, %v", chunked, i, part, err)
			}
		}
		if chunked {
			_, _ = io.WriteString(c, "0\r\n\r\n")
		}
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			t.Errorf("chunked %v: %q at the end, %v", chunked, rest, err)
		}
	}
}

// oneHop: what belongs to a hop ends there, in both directions.
func oneHop(t *testing.T, side Side) {
	got := make(chan http.Header, 1)
	rig := side(t, func(c net.Conn, in *bufio.Reader) {
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			h := r.Header
			for k, v := range r.Trailer {
				h["Trailer "+k] = append([]string{"announced"}, v...)
			}
			got <- h
			_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 1\r\n\r\n"+
				"HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: timeout=1\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nX-End: 1\r\n"+
				"Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nContent-Length: 5\r\nConnection: x\r\nTransfer-Encoding: x\r\n\r\n")
		}
	})
	c, in := rig.dial(t)
	resp, _, err := rig.ask(t, c, in, "POST / HTTP/1.1\r\nHOST\r\nConnection: X-Hop, X-Forwarded-For, keep-alive, TE\r\nTE: trailers, deflate\r\nX-Hop: 1\r\nKeep-Alive: 1\r\n"+
		"Proxy-Authorization: Basic eDp5\r\nProxy-Connection: close\r\nHTTP2-Settings: AAAA\r\nX-End: 1\r\nTrailer: Authorization\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nContent-Length: 7\r\n\r\n")
	if err != nil || resp.StatusCode != 103 || resp.Header.Get("X-Hop")+resp.Header.Get("Keep-Alive")+resp.Header.Get("Connection") != "" {
		t.Errorf("%+v, %v", resp, err)
	}
	h := <-got
	for _, name := range []string{"X-Hop", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Http2-Settings", "Upgrade", "Trailer Content-Length", "Trailer Authorization"} {
		if h[name] != nil {
			t.Errorf("the server got %s: %q", name, h[name])
		}
	}
	if h.Get("X-End") != "1" || h.Get("TE") != "trailers" || h.Get("Connection") != "TE" {
		t.Errorf("the server got %v", h)
	}
	resp, err = http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	for _, name := range []string{"X-Hop", "Keep-Alive", "Proxy-Authenticate", "Upgrade", "Connection"} {
		if resp.Header[name] != nil {
			t.Errorf("the client got %s: %q", name, resp.Header[name])
		}
	}
	if string(body) != "ok" || err != nil || resp.Header.Get("X-End") != "1" || resp.Trailer.Get("X-Sum") != "1" || len(resp.Trailer) != 1 {
		t.Errorf("%+v %q %v; trailers %v", resp, body, err, resp.Trailer)
	}
}

// behind: what a server sends behind a response is no response to the next request.
func behind(t *testing.T, side Side) {
	const forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
	for label, tt := range map[string]struct{ ask, answer string }{
		"another response":   {"GET", ok + forged},
		"behind chunks":      {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + forged},
		"body to HEAD":       {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 46\r\n\r\n" + forged},
		"body of a 204":      {"GET", "HTTP/1.1 204 No Content\r\n\r\n" + forged},
		"body of a 304":      {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 46\r\n\r\n" + forged},
		"chunks of a 204":    {"GET", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + forged},
		"interim and a 204":  {"GET", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n" + forged},
		"behind a 101 of no": {"GET", "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + forged},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			rig := side(t, func(c net.Conn, in *bufio.Reader) {
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					text := tt.answer
					if r.URL.Path != "/first" {
						text = ok
					}
					if _, err := io.WriteString(c, text); err != nil {
						return
					}
				}
			})
			for range 3 {
				c, in := rig.dial(t)
				if _, _, err := rig.ask(t, c, in, tt.ask+" /first HTTP/1.1\r\nHOST\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				if resp, body, err := rig.ask(t, c, in, "POST /next HTTP/1.1\r\nHOST\r\nContent-Length: 1\r\n\r\nx"); err == nil && (resp.StatusCode != 200 || body != "ok") {
					t.Errorf("%+v, %q", resp, body)
				}
			}
		})
	}
}

// expects: a client that waits for 100 hears of it once, or of the answer instead.
func expects(t *testing.T, side Side) {
	for label, tt := range map[string]struct {
		version, before string
		interim, reads  bool
	}{
		"asked for":     {"1.1", "HTTP/1.1 100 Continue\r\n\r\n", true, true},
		"refused":       {"1.1", "", false, false},
		"over HTTP/1.0": {"1.0", "", false, true},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			rig := side(t, func(c net.Conn, in *bufio.Reader) {
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, tt.before)
				status := "417 Expectation Failed"
				if tt.reads {
					body, err := io.ReadAll(r.Body)
					if err != nil || string(body) != "hello" || tt.version == "1.0" && r.Header.Get("Expect") != "" {
						return
					}
					status = "200 OK"
				}
				_, _ = io.WriteString(c, "HTTP/1.1 "+status+"\r\nContent-Length: 2\r\n\r\nok")
				_, _ = io.Copy(io.Discard, in)
			})
			c, in := rig.dial(t)
			body := ""
			if tt.version == "1.0" {
				body = "hello"
			}
			resp, _, err := rig.ask(t, c, in, "POST / HTTP/"+tt.version+"\r\nHOST\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"+body)
			if err != nil {
				t.Fatal(err)
			}
			if tt.interim {
				if resp.StatusCode != 100 {
					t.Fatalf("%+v", resp)
				}
				_, _ = io.WriteString(c, "hello")
				if resp, err = http.ReadResponse(in, nil); err != nil {
					t.Fatal(err)
				}
			}
			if want := map[bool]int{true: 200, false: 417}[tt.reads]; resp.StatusCode != want || resp.Close != !(tt.reads && tt.version == "1.1") {
				t.Errorf("%+v", resp)
			}
		})
	}
}

// lastOfItsConnection: a server that says that it closes the connection after a response gets no other request there.
func lastOfItsConnection(t *testing.T, side Side) {
	for label, answer := range map[string]string{
		"by Connection": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
		"by HTTP/1.0":   "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"behind chunks": "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			rig := side(t, func(c net.Conn, in *bufio.Reader) {
				for text := answer; ; text = strings.ReplaceAll(ok, "ok", "no") {
					if _, err := http.ReadRequest(in); err != nil {
						return
					}
					if _, err := io.WriteString(c, text); err != nil {
						return
					}
				}
			})
			c, in := rig.dial(t)
			for range 3 {
				resp, body, err := rig.ask(t, c, in, "GET / HTTP/1.1\r\nHOST\r\n\r\n")
				if err != nil || body != "ok" || resp.Close {
					t.Fatalf("%+v, %q, %v", resp, body, err)
				}
			}
		})
	}
}

// bound: the connection of a client that logs in as such ends with that of the server, on which nothing else is asked.
func bound(t *testing.T, side Side) {
	var asked atomic.Int64
	rig := side(t, func(c net.Conn, in *bufio.Reader) {
		for {
			r, err := http.ReadRequest(in)
			if err != nil || r.URL.Path == "/act" {
				asked.Add(1)
				return // in the middle of it
			}
			_, _ = io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM TlRMTVNTUAACAAAA\r\nContent-Length: 0\r\n\r\n")
		}
	})
	for _, method := range []string{"GET", "POST"} {
		asked.Store(0)
		c, in := rig.dial(t)
		if resp, _, err := rig.ask(t, c, in, "GET /login HTTP/1.1\r\nHOST\r\n\r\n"); err != nil || resp.StatusCode != 401 || resp.Close {
			t.Fatalf("%+v, %v", resp, err)
		}
		if resp, body, err := rig.ask(t, c, in, method+" /act HTTP/1.1\r\nHOST\r\n\r\n"); err == nil {
			t.Errorf("%s: the connection goes on: %+v, %q", method, resp, body)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%s: asked %d times", method, n)
		}
	}
}

// logged: the event of each request of a connection has the content of its own bodies.
func logged(t *testing.T, side Side) {
	begins := "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"
	rig := side(t, func(c net.Conn, in *bufio.Reader) {
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case r.Method == http.MethodHead:
				_, err = io.WriteString(c, begins)
			case r.URL.Path == "/chunks":
				_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+inChunks("answer", 2)+"0\r\n\r\n")
			case r.URL.Path == "/half":
				_, _ = io.WriteString(c, begins+"ans")
				return
			default:
				_, err = io.WriteString(c, begins+"answer")
			}
			if err != nil {
				return
			}
		}
	})
	c, in := rig.dial(t)
	for _, tt := range []struct {
		method, path, body string
		request, response  int64
	}{
		{"POST", "/length", "Content-Length: 5\r\n\r\nhello", 5, 6},
		{"GET", "/chunks", "\r\n", 0, 6},
		{"POST", "/uploaded", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", 6, 6},
		{"HEAD", "/head", "\r\n", 0, 0},
		{"GET", "/half", "\r\n", 0, 3},
	} {
		if _, _, err := rig.ask(t, c, in, tt.method+" "+tt.path+" HTTP/1.1\r\nHOST\r\n"+tt.body); (err != nil) != (tt.path == "/half") {
			t.Fatalf("%s: %v", tt.path, err)
		}
		if request, response := rig.Logged(tt.path); request != tt.request || response != tt.response {
			t.Errorf("%s: logged with %d and %d bytes, want %d and %d", tt.path, request, response, tt.request, tt.response)
		}
	}
}

// paused: a client may rest within a body for longer than a connection without a request keeps its buffers, and ask again after it.
func paused(t *testing.T, side Side) {
	rig := side(t, digest)
	for _, framing := range []string{"Content-Length: 10\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\na\r\nhello"} {
		c, in := rig.dial(t)
		for range 2 {
			_, _ = io.WriteString(c, "POST /paused HTTP/1.1\r\nHost: "+rig.Host+"\r\n"+framing)
			time.Sleep(relay.RestAfter + relay.RestAfter/2)
			rest := "world"
			if strings.Contains(framing, "chunked") {
				rest += "\r\n0\r\n\r\n"
			}
			resp, body, err := rig.ask(t, c, in, rest)
			if want := fmt.Sprintf("POST /paused %x", sha256.Sum256([]byte("helloworld"))); err != nil || resp.StatusCode != 200 || resp.Close || body != want {
				t.Fatalf("%q: %+v, %q, %v", framing, resp, body, err)
			}
		}
	}
}
