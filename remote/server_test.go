package remote

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/certs"
	"boxgate/policy"
	"boxgate/policy/name"
)

const testHost = "gate.example.org"

// rig is a server whose proxy and tokens are fakes.
type rig struct {
	t      *testing.T
	server *Server
	at     string
	client *tls.Config

	mu       sync.Mutex
	tokens   map[string]Access // by ID and token
	ahead    atomic.Int64      // how far the clock is ahead, in nanoseconds
	opened   func()            // called once by the next successful Open; nil: none
	refusals []string
	known    int
	received []string // heads of the first requests at the proxy
	answer   string
	held     []net.Conn
}

// counting is a Listener that counts known connections.
type counting struct {
	net.Listener
	rig *rig
}

func (l counting) Known(net.Conn) {
	l.rig.mu.Lock()
	defer l.rig.mu.Unlock()
	l.rig.known++
}

func (r *rig) Open(id, token string) (Access, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == "faulty" {
		panic("token " + token)
	}
	if a, ok := r.tokens[id+" "+token]; ok {
		if r.opened != nil {
			r.opened()
			r.opened = nil
		}
		return a, nil
	}
	return Access{}, errors.New("wrong token")
}

// ServeRelayed answers the first request, then echoes.
func (r *rig) ServeRelayed(_ *policy.Box, tcp *net.TCPConn, more int) {
	if more != relayCost {
		r.t.Errorf("memory %d", more)
	}
	go func() {
		defer tcp.Close()
		in := bufio.NewReader(tcp)
		head, err := readHead(in)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.received = append(r.received, string(head))
		answer := r.answer
		r.held = append(r.held, tcp)
		r.mu.Unlock()
		_, _ = io.WriteString(tcp, answer)
		_, _ = io.Copy(tcp, in)
	}()
}

func (r *rig) NoteRefusal(box *policy.Box, why name.Reason, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if box != nil {
		text = string(box.ID) + " " + text
	}
	r.refusals = append(r.refusals, string(why)+" "+text)
}

// refused returns the recorded refusals and forgets them.
func (r *rig) refused() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list, r.refusals = r.refusals, nil
	return list
}

// arrived returns the heads that the proxy has received, and forgets them.
func (r *rig) arrived() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list, r.received = r.received, nil
	return list
}

// one is the box with the token "secret".
var one = &policy.Box{ID: "one", V4: netip.MustParseAddr("10.200.0.7")}

const established = "HTTP/1.1 200 Connection established\r\n\r\n"

func serve(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	ca, err := certs.NewCA("remote")
	if err != nil {
		t.Fatal(err)
	}
	issued, err := certs.NewIssued(ca, testHost)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, tokens: map[string]Access{"one secret": {one, time.Now().Add(time.Hour)}}, answer: established}
	r.client = &tls.Config{ServerName: testHost, RootCAs: x509.NewCertPool()}
	r.client.RootCAs.AddCert(ca.Certificate())
	cfg := Config{TLS: &tls.Config{GetCertificate: issued.GetCertificate}, Proxy: r, Tokens: r, Log: zap.NewNop(), Most: 100, Connections: 100}
	if change != nil {
		change(&cfg)
	}
	if r.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.server.relay.now = func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.at = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(counting{ln, r}) }()
	t.Cleanup(func() {
		r.mu.Lock()
		for _, c := range r.held {
			_ = c.Close()
		}
		r.mu.Unlock()
		if err := r.server.Shutdown(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) dial() *tls.Conn {
	r.t.Helper()
	c, err := tls.Dial("tcp", r.at, r.client)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// say sends text, and returns everything that the server answers until it closes.
func (r *rig) say(text string) string {
	r.t.Helper()
	c := r.dial()
	if _, err := io.WriteString(c, text); err != nil {
		r.t.Fatal(err)
	}
	got, _ := io.ReadAll(c)
	return string(got)
}

// open opens a tunnel, and checks that it echoes.
func (r *rig) open() *tls.Conn {
	r.t.Helper()
	c := r.dial()
	_, _ = io.WriteString(c, connectHead)
	r.echoes(c, bufio.NewReader(c), established)
	return c
}

func (r *rig) echoes(c io.Writer, in *bufio.Reader, first string) {
	r.t.Helper()
	got := make([]byte, len(first)+4)
	_, _ = io.WriteString(c, "ping")
	if _, err := io.ReadFull(in, got); err != nil || string(got) != first+"ping" {
		r.t.Fatalf("answered %q, %v", got, err)
	}
}

// basic is the credentials one:secret.
const (
	basic       = "Proxy-Authorization: Basic b25lOnNlY3JldA==\r\n"
	connectHead = "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n" + basic + "\r\n"
	hello       = "\x05\x02\x00\x02"
	login       = "\x01\x03one\x06secret"
)

// A request with a token reaches the proxy without it.
func TestRequestsReachTheProxyWithoutCredentials(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	c := r.open()
	_ = c.CloseWrite()
	if rest, err := io.ReadAll(c); len(rest) != 0 || err != nil {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	if got := r.arrived(); !slices.Equal(got, []string{strings.Replace(connectHead, basic, "", 1)}) {
		t.Errorf("the proxy got %q", got)
	}
	if in, out, ok := r.server.Transferred("one"); !ok || in != uint64(len(established)+4) || out != uint64(len(connectHead)-len(basic)+4) {
		t.Errorf("counted %d and %d", in, out)
	}
	for _, variant := range []string{"proxy-authorization:Basic b25lOnNlY3JldA==\r\n", "PROXY-AUTHORIZATION: basic  b25lOnNlY3JldA== \r\n", "Proxy-Authorization:\tBasic b25lOnNlY3JldA==\n"} {
		c := r.dial()
		_, _ = io.WriteString(c, "GET http://example.com/ HTTP/1.1\r\n"+variant+"X: y\r\n\r\n")
		r.echoes(c, bufio.NewReader(c), established)
		if got := r.arrived(); len(got) != 1 || got[0] != "GET http://example.com/ HTTP/1.1\r\nX: y\r\n\r\n" {
			t.Errorf("%q: the proxy got %q", variant, got)
		}
	}
}

// SOCKS5 becomes a CONNECT, and its answer a reply.
func TestSOCKS(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	const ok = "\x05\x02\x01\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
	for request, authority := range map[string]string{
		"\x05\x01\x00\x03\x0bexample.com\x01\xbb":                                                  "example.com:443",
		"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50":                                                 "192.0.2.1:80",
		"\x05\x01\x00\x04\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x16": "[2001:db8::1]:22",
		"\x05\x01\x00\x03\x09127.0.0.1\x00\x50":                                                    "127.0.0.1:80",
		"\x05\x01\x00\x03\x03::1\x00\x50":                                                          "[::1]:80",
		"\x05\x01\x00\x03\x00\x00\x50":                                                             ":80",
		"\x05\x01\x00\x03\x05a\x00b\r\n\x00\x50":                                                   "a%00b%0D%0A:80",
		"\x05\x01\x00\x03\xff" + strings.Repeat("a", 255) + "\x00\x50":                             strings.Repeat("a", 255) + ":80",
	} {
		c := r.dial()
		_, _ = io.WriteString(c, hello+login+request)
		r.echoes(c, bufio.NewReader(c), ok)
		if got := r.arrived(); len(got) != 1 || got[0] != "CONNECT "+authority+" HTTP/1.1\r\nHost: "+authority+"\r\n\r\n" {
			t.Errorf("%q: the proxy got %q", request, got)
		}
	}
	for status, code := range map[string]string{"403 Forbidden": "\x02", "502 Bad Gateway": "\x04", "400 Bad Request": "\x01", "": "\x01"} {
		r.mu.Lock()
		r.answer = ""
		if status != "" {
			r.answer = "HTTP/1.1 " + status + "\r\nContent-Length: 0\r\n\r\n"
		}
		r.mu.Unlock()
		c := r.dial()
		_, _ = io.WriteString(c, hello+login+"\x05\x01\x00\x03\x0bexample.com\x01\xbb")
		if status == "" {
			_ = c.CloseWrite()
			r.server.Cut("one")
			continue
		}
		if got, _ := io.ReadAll(c); !strings.HasPrefix(string(got), "\x05\x02\x01\x00\x05"+code) {
			t.Errorf("%s: %q", status, got)
		}
	}
}

// Strangers reach neither the proxy nor the place of a known client.
func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	for text, want := range map[string]struct{ answer, refusal string }{
		"GET http://example.com/ HTTP/1.1\r\n\r\n":                                                                           {"HTTP/1.1 407 ", "without credentials"},
		"GET http://example.com/ HTTP/1.1\r\nProxy-Authorization: Basic b25lOndyb25n\r\n\r\n":                                {"HTTP/1.1 407 ", "wrong token"},
		"GET http://example.com/ HTTP/1.1\r\n" + basic + basic + "\r\n":                                                      {"HTTP/1.1 407 ", "malformed Proxy-Authorization"},
		"GET http://example.com/ HTTP/1.1\r\nProxy-Authorization: Basic b25lOnNlY3JldA==\r\n Host: example.net\r\n\r\n":      {"HTTP/1.1 407 ", "malformed Proxy-Authorization"},
		"GET http://example.com/ HTTP/1.1\r\nProxy-Authorization : Basic b25lOnNlY3JldA==\r\n\r\n":                           {"HTTP/1.1 407 ", "malformed Proxy-Authorization"},
		"GET http://example.com/ HTTP/1.1\r\nX: y\r\n Proxy-Authorization: Basic b25lOnNlY3JldA==\r\n\r\n":                   {"HTTP/1.1 407 ", "malformed Proxy-Authorization"},
		"GET http://example.com/ HTTP/1.1\r\nProxy-Authorization: Bearer secret\r\n\r\n":                                     {"HTTP/1.1 407 ", "malformed Proxy-Authorization"},
		"GET http://example.com/ HTTP/1.1\r\nProxy-Authorization: Basic " + strings.Repeat("a", maxCredentials) + "\r\n\r\n": {"HTTP/1.1 407 ", "malformed Proxy-Authorization"},
		"GET / HTTP/1.1\r\nX: " + strings.Repeat("x", maxHead) + "\r\n":                                                      {"HTTP/1.1 431 ", "too large"},
		"\x05\x01\x00":                  {"\x05\xff", "no user name and password"},
		hello + "\x01\x03one\x05wrong":  {"\x05\x02\x01\x01", "wrong token"},
		hello + "\x01\x03two\x06secret": {"\x05\x02\x01\x01", "wrong token"},
		hello + "\x05\x03two\x06secret": {"\x05\x02", "malformed SOCKS5"},
		"\x05\x00":                      {"", "malformed SOCKS5"},
	} {
		if got := r.say(text); !strings.HasPrefix(got, want.answer) {
			t.Errorf("%.60q: answered %q", text, got)
		}
		if got := r.refused(); len(got) != 1 || !strings.Contains(got[0], want.refusal) || !strings.HasPrefix(got[0], "unknown_box from 127.0.0.1: ") || strings.Contains(got[0], "secret") {
			t.Errorf("%.60q: refusals %q", text, got)
		}
	}
	for text, want := range map[string]string{
		"\x05\x02\x00\x03\x0bexample.com\x01\xbb": "\x05\x07", "\x05\x03\x00\x01\xc0\x00\x02\x01\x00\x50": "\x05\x07",
		"\x05\x01\x00\x05\x0bexample.com\x01\xbb": "\x05\x08", "\x04\x01\x00\x01\xc0\x00\x02\x01\x00\x50": "\x05\x01",
	} {
		if got := r.say(hello + login + text); !strings.HasPrefix(got, "\x05\x02\x01\x00"+want) {
			t.Errorf("%q: answered %q", text, got)
		}
		if got := r.refused(); len(got) != 1 || !strings.HasPrefix(got[0], "protocol one ") {
			t.Errorf("%q: refusals %q", text, got)
		}
	}
	for _, text := range []string{needCredentials, noPlace, headTooLarge} {
		in := bufio.NewReader(strings.NewReader(text))
		if got, err := http.ReadResponse(in, nil); err != nil {
			t.Errorf("%q: %v", text, err)
		} else if _, err := io.Copy(io.Discard, got.Body); err != nil || in.Buffered() != 0 {
			t.Errorf("%q: the length of the body is wrong: %v", text, err)
		}
	}
	c, err := net.Dial("tcp", r.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, connectHead)
	if got, _ := io.ReadAll(c); strings.Contains(string(got), "HTTP/1.1 200") {
		t.Errorf("without TLS: %q", got)
	}
	if got := r.arrived(); len(got) != 0 {
		t.Errorf("the proxy got %q", got)
	}
}

// Wrong tokens are answered late, and only so many clients wait for that.
func TestWrongTokensWait(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	const wrong = "GET http://example.com/ HTTP/1.1\r\nProxy-Authorization: Basic b25lOndyb25n\r\n\r\n"
	began := time.Now()
	if got := r.say(wrong); !strings.HasPrefix(got, "HTTP/1.1 407 ") || time.Since(began) < failTime {
		t.Errorf("answered %q after %v", got, time.Since(began))
	}
	for range mostFailing {
		r.server.failing <- struct{}{}
	}
	for _, text := range []string{wrong, hello + "\x01\x03one\x05wrong"} {
		if got := r.say(text); len(got) > 2 {
			t.Errorf("answered %q although too many wait", got)
		}
	}
	r.open()
}

// The end of a token cuts its open connections: when it is replaced, and when it expires.
func TestEndOfATokenCuts(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	two := &policy.Box{ID: "two", V4: netip.MustParseAddr("10.200.0.8")}
	r.mu.Lock()
	r.tokens["two secret"] = Access{two, time.Now().Add(time.Hour)}
	r.mu.Unlock()
	c := r.open()
	other := r.dial()
	_, _ = io.WriteString(other, "CONNECT example.com:443 HTTP/1.1\r\nProxy-Authorization: Basic dHdvOnNlY3JldA==\r\n\r\n")
	in := bufio.NewReader(other)
	r.echoes(other, in, established)
	r.mu.Lock()
	delete(r.tokens, "one secret")
	r.mu.Unlock()
	began := time.Now()
	_ = c.SetDeadline(began.Add(20 * time.Second))
	r.server.Cut("one")
	if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Error("the connection is open")
	}
	t.Logf("cut after %v", time.Since(began))
	if got := r.say(connectHead); !strings.HasPrefix(got, "HTTP/1.1 407 ") {
		t.Errorf("answered %q", got)
	}
	r.echoes(other, in, "")
	r.mu.Lock()
	r.tokens["one secret"] = Access{one, time.Now().Add(300 * time.Millisecond)}
	r.mu.Unlock()
	if rest, _ := io.ReadAll(r.open()); len(rest) != 0 {
		t.Errorf("received %q", rest)
	}
	r.server.relay.sweep(time.Now().Add(59 * time.Minute))
	r.echoes(other, in, "")
	r.server.relay.sweep(time.Now().Add(61 * time.Minute).Round(0)) // the host was suspended, which its timers do not notice
	if _, err := in.ReadByte(); err == nil || os.IsTimeout(err) {
		t.Error("a connection outlives its token")
	}
	other = r.dial()
	_, _ = io.WriteString(other, "CONNECT example.com:443 HTTP/1.1\r\nProxy-Authorization: Basic dHdvOnNlY3JldA==\r\n\r\n")
	in = bufio.NewReader(other)
	r.echoes(other, in, established)
	r.ahead.Store(int64(2 * time.Hour)) // the clock was set
	_, before, _ := r.server.Transferred("two")
	_, _ = io.WriteString(other, "late")
	if _, err := in.ReadByte(); err == nil || os.IsTimeout(err) {
		t.Error("bytes pass after the end of the token")
	}
	if _, after, _ := r.server.Transferred("two"); after != before {
		t.Errorf("%d bytes passed after the end of the token", after-before)
	}
	r.ahead.Store(0)
	other = r.dial()
	_, _ = io.WriteString(other, "CONNECT example.com:443 HTTP/1.1\r\nProxy-Authorization: Basic dHdvOnNlY3JldA==\r\n\r\n")
	in = bufio.NewReader(other)
	r.echoes(other, in, established)
	r.server.Forget("two")
	if _, err := in.ReadByte(); err == nil {
		t.Error("the connection of a forgotten box is open")
	}
	if _, _, ok := r.server.Transferred("two"); ok {
		t.Error("a forgotten box has counters")
	}
}

// A connection that enters while its box is deleted, between the check of its token and the end of the others, is refused and leaves
// nothing.
func TestConnectionOfADeletedBoxLeavesNothing(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	r.mu.Lock()
	r.opened = func() { // after the first check of the token
		delete(r.tokens, "one secret")
		r.server.Forget("one")
	}
	r.mu.Unlock()
	if got := r.say(connectHead); strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("answered %q", got)
	}
	if err := r.server.Shutdown(t.Context()); err != nil { // the client sees the end before the server has left
		t.Fatal(err)
	}
	r.server.relay.mu.Lock()
	defer r.server.relay.mu.Unlock()
	if n := r.server.relay.n; n != 0 || len(r.server.relay.boxes) != 0 {
		t.Errorf("%d connections, accounts %v", n, r.server.relay.boxes)
	}
}

// A panic ends its own connection, and its text, which may quote a client, is not logged.
func TestPanicEndsOneConnection(t *testing.T) {
	t.Parallel()
	logged, entries := observer.New(zap.ErrorLevel)
	r := serve(t, func(c *Config) { c.Log = zap.New(logged) })
	c := r.open()
	if got := r.say("GET http://example.com/ HTTP/1.1\r\nProxy-Authorization: Basic ZmF1bHR5OnNlY3JldA==\r\n\r\n"); got != "" {
		t.Errorf("answered %q", got)
	}
	_, _ = io.WriteString(c, "ping")
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		t.Errorf("another connection: %v", err)
	}
	if all := entries.All(); len(all) != 1 || strings.Contains(fmt.Sprint(all[0].Message, all[0].ContextMap()), "secret") {
		t.Errorf("logged %v", all)
	}
}

// A box has as many connections as its limit permits, and half of all at most.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	for most, cfg := range map[int]func(*Config){3: func(c *Config) { c.Connections = 3 }, 2: func(c *Config) { c.Most = 4 }} {
		r := serve(t, cfg)
		var held []*tls.Conn
		for range most {
			held = append(held, r.open())
		}
		if got := r.say(connectHead); got != noPlace {
			t.Fatalf("answered %q", got)
		}
		if got := r.refused(); len(got) != 1 || !strings.HasPrefix(got[0], "limit one ") {
			t.Errorf("refusals %q", got)
		}
		_ = held[0].Close()
		for r.server.Open() == most {
			_ = r.dial().Close() // takes a moment
		}
		r.open()
		r.mu.Lock()
		if r.known != most+1 {
			t.Errorf("%d known connections", r.known)
		}
		r.mu.Unlock()
	}
}

// The rates of a box apply to all its connections together.
func TestRatesAreLimited(t *testing.T) {
	t.Parallel()
	r := serve(t, func(c *Config) { c.Receive = 256 << 10 })
	began := time.Now()
	var all sync.WaitGroup
	for range 2 {
		c := r.open()
		all.Go(func() {
			_, _ = c.Write(make([]byte, 128<<10))
			_ = c.CloseWrite()
			if n, err := io.Copy(io.Discard, c); n != 128<<10 || err != nil {
				t.Errorf("received %d bytes, %v", n, err)
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took < 800*time.Millisecond { // less the burst of a tenth of a second
		t.Errorf("256 KiB at 256 KiB a second took %v", took)
	}
}

// A proxy's answer that is an HTTP response is passed on, and keeps its body.
func TestAnswersArePassedOn(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	r.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied"
	c := r.dial()
	_, _ = io.WriteString(c, connectHead)
	got, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || got.StatusCode != 403 {
		t.Fatalf("%v, %v", got, err)
	}
	if text, _ := io.ReadAll(got.Body); string(text) != "denied" {
		t.Errorf("body %q", text)
	}
}
