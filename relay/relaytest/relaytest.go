// Package relaytest is the conformance suite of the sides of package relay: one list of attacks and edge cases of HTTP/1.1, run by the
// tests of egress and of public URLs.
package relaytest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/internal/handshake"
)

// Rig is a gateway between clients and a server that a test writes.
type Rig struct {
	Host string          // as requests name the server
	Dial func() net.Conn // connects a client, over TLS if the side speaks that
	Says string          // a part of the answer to a malformed request
	// Logged waits for the event of the request for a path, and returns how much content the bodies of the request and the response had.
	Logged func(path string) (request, response int64)
}

// Side makes a rig with a server.
type Side func(t *testing.T, server func(net.Conn, *bufio.Reader)) Rig

// Run walks everything on a side.
func Run(t *testing.T, side Side) {
	for name, test := range map[string]func(*testing.T, Side){
		"requests with two meanings": refusesTwoMeanings, "responses": responses, "interim responses": interim, "upgrades": upgrades,
		"requests sent again": sentAgain, "bodies broken off": brokenOff, "answers before the body": answeredEarly,
		"bodies": bodiesWhole, "both ways": bothWays, "one hop": oneHop, "behind a response": behind, "expectations": expects, "last of a connection": lastOfItsConnection, "bound": bound, "log": logged, "pauses": paused,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, side)
		})
	}
}

// dial connects a client that gives up after a minute.
func (r Rig) dial(t *testing.T) (net.Conn, *bufio.Reader) {
	c := r.Dial()
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c, bufio.NewReader(c)
}

// ask sends a request whose HOST is the field, and returns the response.
func (r Rig) ask(t *testing.T, c net.Conn, in *bufio.Reader, request string) (*http.Response, string, error) {
	t.Helper()
	method, _, _ := strings.Cut(request, " ")
	if _, err := io.WriteString(c, strings.ReplaceAll(request, "HOST", "Host: "+r.Host)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(in, &http.Request{Method: method})
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// answers is a server that reads requests, and sends a text after each.
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

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// refusesTwoMeanings sends requests that two parsers could read in two ways: the answer is 400, the connection ends, and no byte
// reaches the server.
func refusesTwoMeanings(t *testing.T, side Side) {
	var got atomic.Int64
	rig := side(t, func(_ net.Conn, in *bufio.Reader) {
		for {
			if _, err := in.Discard(1); err != nil {
				return
			}
			got.Add(1) // at once: a connection that is kept does not end
		}
	})
	for label, request := range twoMeanings {
		c, in := rig.dial(t)
		go func() { _, _ = io.WriteString(c, strings.ReplaceAll(request, "HOST", "Host: "+rig.Host)) }()
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Errorf("%s: %v", label, err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		want := http.StatusBadRequest
		if label == "large head" {
			want = http.StatusRequestHeaderFieldsTooLarge
		}
		if resp.StatusCode != want || !resp.Close || !strings.Contains(string(body), rig.Says) {
			t.Errorf("%s: %s, close %v: %s", label, resp.Status, resp.Close, body)
		}
		if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection goes on: %v", label, err)
		}
		c.Close()
	}
	if n := got.Load(); n > 0 {
		t.Errorf("the server received %d bytes", n)
	}
}

var twoMeanings = map[string]string{
	"CL.TE":                    "POST / HTTP/1.1\r\nHOST\r\nContent-Length: 30\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n",
	"TE.CL":                    "POST / HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\nGET /admin HTTP/1.1\r\n\r\n0\r\n\r\n",
	"TE.TE":                    "POST / HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\nTransfer-encoding: cow\r\n\r\n0\r\n\r\n",
	"TE with a space":          "POST / HTTP/1.1\r\nHOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
	"TE with a tab":            "POST / HTTP/1.1\r\nHOST\r\nTransfer-Encoding:\tchunked\x0b\r\n\r\n0\r\n\r\n",
	"TE, underscore":           "POST / HTTP/1.1\r\nHOST\r\nTransfer_Encoding: chunked\r\n\r\n0\r\n\r\n",
	"repeated CL":              "POST / HTTP/1.1\r\nHOST\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\nGET /admin HTTP/1.1\r\n\r\n",
	"CL list":                  "POST / HTTP/1.1\r\nHOST\r\nContent-Length: 0, 44\r\n\r\n",
	"CL sign":                  "POST / HTTP/1.1\r\nHOST\r\nContent-Length: +0\r\n\r\n",
	"bare LF":                  "GET / HTTP/1.1\nHOST\r\n\r\n",
	"bare LF in a field":       "GET / HTTP/1.1\r\nHOST\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n",
	"bare CR":                  "GET / HTTP/1.1\r\nHOST\r\nX: y\rTransfer-Encoding: chunked\r\n\r\n",
	"obs-fold":                 "GET / HTTP/1.1\r\nHOST\r\nX: y\r\n z\r\n\r\n",
	"NUL":                      "GET / HTTP/1.1\r\nHOST\r\nX: y\x00z\r\n\r\n",
	"two Hosts":                "GET / HTTP/1.1\r\nHOST\r\nHost: evil.example.com\r\n\r\n",
	"no Host":                  "GET / HTTP/1.1\r\n\r\n",
	"space in the target":      "GET / x HTTP/1.1\r\nHOST\r\n\r\n",
	"chunk extension":          "POST / HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\n\r\n",
	"chunk size, sign":         "POST / HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
	"chunk without CR":         "POST / HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
	"chunk, wrong size":        "POST / HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n",
	"TE in HTTP/1.0":           "POST / HTTP/1.0\r\nHOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"large head":               "GET / HTTP/1.1\r\nHOST\r\nX: " + strings.Repeat("y", 70<<10) + "\r\n\r\n",
	"many fields":              "GET / HTTP/1.1\r\nHOST\r\n" + strings.Repeat("X: y\r\n", 200) + "\r\n",
	"Connection names framing": "POST / HTTP/1.1\r\nHOST\r\nConnection: content-length\r\nContent-Length: 5\r\n\r\nhello",
}

const begins = "HTTP/1.1 200 OK\r\n"

// responseRow is a response of a server.
type responseRow struct {
	answer string
	ask    string // "": a GET
	status int
	body   string
	broken bool // the client must not take the body for whole
}

var responseRows = map[string]responseRow{
	"a length":            {answer: ok, status: 200, body: "ok"},
	"chunks":              {answer: begins + "Transfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\nX-Sum: 1\r\n\r\n", status: 200, body: "ok"},
	"chunks to HTTP/1.0":  {answer: begins + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", ask: "GET / HTTP/1.0\r\nHOST\r\n\r\n", status: 200, body: "ok"},
	"no body":             {answer: "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", status: 204},
	"not modified":        {answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", status: 304},
	"to HEAD":             {answer: begins + "Content-Length: 5\r\n\r\n", ask: "HEAD / HTTP/1.1\r\nHOST\r\n\r\n", status: 200},
	"two lengths":         {answer: begins + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", status: 502},
	"a length and chunks": {answer: begins + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 502},
	"a bare LF":           {answer: "HTTP/1.1 200 OK\nContent-Length: 0\n\n", status: 502},
	"not HTTP":            {answer: "SSH-2.0-OpenSSH_9.2\r\n", status: 502},
	"a status of 000":     {answer: "HTTP/1.1 000 No\r\nContent-Length: 0\r\n\r\n", status: 502},
	"a bad chunk":         {answer: begins + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n", status: 200, body: "ok", broken: true},
	"half a trailer":      {answer: begins + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: \x00\r\n\r\n", status: 200, body: "ok", broken: true},
}

// responses come with the same meaning, or not at all.
func responses(t *testing.T, side Side) {
	for label, tt := range responseRows {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			rig := side(t, answers(tt.answer))
			if tt.ask == "" {
				tt.ask = "GET / HTTP/1.1\r\nHOST\r\n\r\n"
			}
			for range 2 { // leftovers of one must not be taken for the next
				c, in := rig.dial(t)
				resp, body, err := rig.ask(t, c, in, tt.ask)
				if tt.broken && resp == nil {
					continue // the reset may come first
				}
				if resp != nil && tt.status == http.StatusNoContent && resp.Header["Content-Length"] != nil {
					t.Errorf("a length of no content: %v", resp.Header)
				}
				if resp == nil || resp.StatusCode != tt.status || (err != nil) != tt.broken || tt.status == 200 && !tt.broken && body != tt.body {
					t.Errorf("%+v, %q, %v", resp, body, err)
				}
				c.Close()
			}
		})
	}
}

// interim responses pass, up to a number; a 100 is for a client that waits for it.
func interim(t *testing.T, side Side) {
	const hint = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 5\r\n\r\n"
	rig := side(t, answers("HTTP/1.1 100 Continue\r\n\r\n"+hint+ok))
	c, in := rig.dial(t)
	if resp, _, err := rig.ask(t, c, in, "GET / HTTP/1.1\r\nHOST\r\n\r\n"); err != nil || resp.StatusCode != 103 || resp.Header.Get("Link") != "</a>" || resp.Header["Content-Length"] != nil {
		t.Errorf("not the hint: %+v, %v", resp, err)
	}
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("after the hint: %+v, %v", resp, err)
	}
	c, in = rig.dial(t)
	if resp, body, err := rig.ask(t, c, in, "GET / HTTP/1.0\r\nHOST\r\n\r\n"); err != nil || resp.StatusCode != 200 || body != "ok" {
		t.Errorf("to HTTP/1.0: %+v, %q, %v", resp, body, err)
	}
	rig = side(t, answers(strings.Repeat(hint, 40)+ok))
	c, in = rig.dial(t)
	resp, _, err := rig.ask(t, c, in, "GET / HTTP/1.1\r\nHOST\r\n\r\n")
	for ; err == nil && resp.StatusCode == 103; resp, err = http.ReadResponse(in, nil) {
	}
	if err != nil || resp.StatusCode != http.StatusBadGateway {
		t.Errorf("after 40 interim responses: %+v, %v", resp, err)
	}
}

// upgrades lead only to a WebSocket that was requested.
func upgrades(t *testing.T, side Side) {
	const key = "dGhlIHNhbXBsZSBub25jZQ=="
	asked := "HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + "\r\n"
	switched := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "
	for label, tt := range map[string]struct {
		ask, answer string
		opens       bool
	}{
		"a handshake":         {"GET / HTTP/1.1\r\n" + asked + "\r\n", switched + handshake.Accept(key) + "\r\n\r\n", true},
		"another key":         {"GET / HTTP/1.1\r\n" + asked + "\r\n", switched + handshake.Accept("other") + "\r\n\r\n", false},
		"no upgrade at all":   {"GET / HTTP/1.1\r\nHOST\r\n\r\n", switched + handshake.Accept(key) + "\r\n\r\n", false},
		"not by GET":          {"POST / HTTP/1.1\r\n" + asked + "\r\n", switched + handshake.Accept(key) + "\r\n\r\n", false},
		"with a body":         {"GET / HTTP/1.1\r\n" + asked + "Content-Length: 2\r\n\r\nhi", switched + handshake.Accept(key) + "\r\n\r\n", false},
		"over HTTP/1.0":       {"GET / HTTP/1.0\r\n" + asked + "\r\n", switched + handshake.Accept(key) + "\r\n\r\n", false},
		"of HTTP/2":           {"GET / HTTP/1.1\r\nHOST\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", false},
		"to something else":   {"GET / HTTP/1.1\r\n" + asked + "\r\n", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tunnel\r\nSec-WebSocket-Accept: " + handshake.Accept(key) + "\r\n\r\n", false},
		"by HTTP/1.0":         {"GET / HTTP/1.1\r\n" + asked + "\r\n", "HTTP/1.0" + strings.TrimPrefix(switched, "HTTP/1.1") + handshake.Accept(key) + "\r\n\r\n", false},
		"an extension of its": {"GET / HTTP/1.1\r\n" + asked + "\r\n", switched + handshake.Accept(key) + "\r\nSec-WebSocket-Extensions: x\r\n\r\n", false},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			upgrade := make(chan string, 1)
			rig := side(t, func(c net.Conn, in *bufio.Reader) {
				if r, err := http.ReadRequest(in); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					upgrade <- r.Header.Get("Upgrade")
					_, _ = io.WriteString(c, tt.answer)
					_, _ = io.Copy(c, in)
				}
			})
			c, in := rig.dial(t)
			resp, _, err := rig.ask(t, c, in, tt.ask)
			if !tt.opens {
				if got := <-upgrade; err != nil || resp.StatusCode != http.StatusBadGateway || got != "" && got != "websocket" {
					t.Errorf("%+v, %v; the server was asked for %q", resp, err, got)
				}
				return
			}
			_, _ = io.WriteString(c, "through")
			echo := make([]byte, 7)
			if _, err := io.ReadFull(in, echo); err != nil || resp.StatusCode != http.StatusSwitchingProtocols || string(echo) != "through" {
				t.Errorf("%+v, %q, %v", resp, echo, err)
			}
		})
	}
}

// sentAgain: a request that the server may have acted on is not repeated.
func sentAgain(t *testing.T, side Side) {
	for method, again := range map[string]bool{"GET": true, "HEAD": true, "OPTIONS": true, "POST": false, "PUT": false, "DELETE": false, "PATCH": false} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			var times atomic.Int64
			rig := side(t, func(c net.Conn, in *bufio.Reader) {
				for first := true; ; first = false {
					r, err := http.ReadRequest(in)
					if err != nil || r.URL.Path == "/act" && !first {
						if err == nil {
							times.Add(1)
						}
						return // in the middle of it
					}
					if r.URL.Path == "/act" {
						times.Add(1)
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
			c, in := rig.dial(t)
			if resp, _, err := rig.ask(t, c, in, "GET /first HTTP/1.1\r\nHOST\r\n\r\n"); err != nil || resp.StatusCode != 200 {
				t.Fatalf("%+v, %v", resp, err)
			}
			resp, _, err := rig.ask(t, c, in, method+" /act HTTP/1.1\r\nHOST\r\n\r\n")
			status, want := http.StatusBadGateway, int64(1)
			if again {
				status, want = http.StatusOK, 2
			}
			if n := times.Load(); err != nil || resp.StatusCode != status || n != want {
				t.Errorf("%+v, %v; asked %d times, want %d", resp, err, n, want)
			}
		})
	}
}

// brokenOff: a server does not take a part of a body for the whole, nor a client a part of a response.
func brokenOff(t *testing.T, side Side) {
	for label, tt := range map[string]struct{ sent, later string }{
		"a length":        {"Content-Length: 100\r\n\r\nhello", ""},
		"chunks":          {"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", ""},
		"a chunk too bad": {"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "5;x\r\nworld\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n"},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			begun, end := make(chan struct{}), make(chan error, 1)
			rig := side(t, func(_ net.Conn, in *bufio.Reader) {
				r, err := http.ReadRequest(in)
				if err == nil {
					_, err = io.ReadFull(r.Body, make([]byte, 5))
				}
				if err != nil {
					end <- fmt.Errorf("no request: %w", err)
					close(begun)
					return
				}
				close(begun)
				rest, err := io.ReadAll(r.Body)
				if len(rest) > 0 {
					err = nil
				}
				end <- err
			})
			c, in := rig.dial(t)
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+rig.Host+"\r\n"+tt.sent)
			<-begun
			if tt.later == "" {
				c.Close()
			} else if resp, _, err := rig.ask(t, c, in, tt.later); err != nil || resp.StatusCode != http.StatusBadRequest || !resp.Close {
				t.Errorf("%+v, %v", resp, err)
			}
			if err := <-end; err == nil {
				t.Error("the server takes what it has for the whole")
			}
		})
	}
	for _, head := range []string{"Content-Length: 100\r\n", "Transfer-Encoding: chunked\r\n"} {
		for _, version := range []string{"1.0", "1.1"} {
			rig := side(t, func(c net.Conn, in *bufio.Reader) {
				if _, err := http.ReadRequest(in); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+head+"\r\n5\r\nhello\r\n")
				}
			})
			c, in := rig.dial(t)
			if _, body, err := rig.ask(t, c, in, "GET / HTTP/"+version+"\r\nHOST\r\n\r\n"); err == nil {
				t.Errorf("%q to HTTP/%s: %q looks whole", head, version, body)
			}
		}
	}
}

// answeredEarly: an answer comes before the request is complete, and the connection ends, as the rest of the body could be taken for a
// request.
func answeredEarly(t *testing.T, side Side) {
	rig := side(t, func(c net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err == nil {
			_, _ = io.WriteString(c, ok)
			_, _ = io.Copy(io.Discard, in)
		}
	})
	for _, framing := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
		c, in := rig.dial(t)
		resp, body, err := rig.ask(t, c, in, "POST / HTTP/1.1\r\nHOST\r\n"+framing+"\r\n\r\n")
		if err != nil || resp.StatusCode != 200 || body != "ok" || !resp.Close {
			t.Errorf("%s: %+v, %q, %v", framing, resp, body, err)
		}
		_, _ = io.WriteString(c, "GET /admin HTTP/1.1\r\nHost: "+rig.Host+"\r\n\r\n")
		if _, err := in.ReadByte(); err == nil {
			t.Errorf("%s: the connection goes on", framing)
		}
	}
}
