package proxy_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy"
	"boxgate/proxy/peek/peektest"
	"boxgate/proxy/proxytest"
)

// TestOddConnectionsLeaveNoClaims: clients and servers break off wherever they can. No memory claim of the box outlives
// them, as the box would lock itself out in the end.
func TestOddConnectionsLeaveNoClaims(t *testing.T) {
	budget := memory.New(64<<20, 64<<20)
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll}, func(c *proxy.Config) {
		c.Memory = budget
	})
	cert := r.Upstream.Certificate(t, cdn)
	for _, protocol := range []string{"h2", "http/1.1"} {
		server := r.Server(443, func(c net.Conn) {
			defer c.Close()
			breakOffAnswers(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{protocol}}))
		})
		r.Names.Set(cdn, server.Addr())
		r.Rules(proxytest.Allow("*.example.org"), `{"`+cdn+`": {"headers": {"Authorization": "Bearer 0123456789"}, "scrub": true}}`)
		at, proxy := r.Listen(server), r.Explicit()
		for _, aborted := range []bool{false, true} {
			for _, said := range oddOpenings(t) {
				sayAndLeave(t, at, said, aborted)
				sayAndLeave(t, proxy, append([]byte("CONNECT "+cdn+":443 HTTP/1.1\r\n\r\n"), said...), aborted)
			}
			sayAndLeave(t, proxy, []byte("CONNECT "+cdn+":443 HTTP/1.1\r\nX: "+strings.Repeat("x", 30<<10)), aborted)
			for _, path := range oddAnswers {
				oddHTTP1(t, at, path, aborted)
			}
			for _, path := range oddAnswers {
				oddHTTP2(t, at, path, aborted)
			}
		}
	}
	r.Proxy.CloseBox(r.Box.ID) // and the idle connections to servers
	proxytest.Await(t, "every claim to be given back", func() bool { return claims(budget) == "" })
}

// claims lists the memory in use by kind.
func claims(b *memory.Budget) (held string) {
	for _, k := range memory.Kinds() {
		if n := b.InUse(k); n != 0 {
			held += fmt.Sprintf("%s: %d; ", k, n)
		}
	}
	return held
}

// oddOpenings are incomplete first bytes, most of them longer than a connection may buffer without a claim.
func oddOpenings(t *testing.T) [][]byte {
	long := strings.Repeat("x", 30<<10)
	return [][]byte{
		append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0xf0, 0}, make([]byte, 12<<10)...),
		peektest.Named(t, cdn), peektest.Named(t, static), peektest.Named(t, cdn)[:100],
		[]byte("GET /" + long), []byte("GET / HTTP/1.1\r\nHost: " + cdn + ":443\r\nX: " + long),
	}
}

func sayAndLeave(t *testing.T, to string, said []byte, aborted bool) {
	c := proxytest.DialTo(t, to)
	defer c.Close()
	_, _ = c.Write(said)
	if aborted {
		_ = c.SetLinger(0)
		return
	}
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}

// oddAnswers are the paths of the server.
var oddAnswers = []string{"/compressed", "/head", "/upgrade", "/nothing"}

// breakOffAnswers is a server that breaks off each answer.
func breakOffAnswers(s *tls.Conn) {
	if s.Handshake() != nil {
		return
	}
	if s.ConnectionState().NegotiatedProtocol == "h2" {
		//lint:ignore SA1019 the connection is the test's own
		(&http2.Server{}).ServeConn(s, &http2.ServeConnOpts{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			switch q.URL.Path {
			case "/compressed":
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(halfCompressed())
			case "/head":
				w.Header().Set("X-Long", strings.Repeat("x", 30<<10))
			}
			panic(http.ErrAbortHandler)
		})})
		return
	}
	b := make([]byte, 4<<10)
	n, _ := s.Read(b)
	switch target := string(b[:n]); {
	case strings.Contains(target, " /compressed"):
		_, _ = fmt.Fprintf(s, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n%s", halfCompressed())
	case strings.Contains(target, " /head"):
		_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nX-Long: "+strings.Repeat("x", 30<<10))
	case strings.Contains(target, " /upgrade"):
		_, _ = io.WriteString(s, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
	}
}

func halfCompressed() []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for i := range 64 << 10 {
		_, _ = fmt.Fprint(w, i*7919)
	}
	return b.Bytes()[:b.Len()/2]
}

// terminated returns a connection whose TLS the gateway terminates.
func terminated(t *testing.T, at, protocol string) *tls.Conn {
	c := tls.Client(proxytest.DialTo(t, at), &tls.Config{ServerName: cdn, InsecureSkipVerify: true, NextProtos: []string{protocol}})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	return c
}

// oddHTTP1 sends a long head and disconnects, immediately or when the answer breaks off.
func oddHTTP1(t *testing.T, at, path string, aborted bool) {
	c := terminated(t, at, "http/1.1")
	defer c.NetConn().Close()
	_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: "+cdn+"\r\nX: "+strings.Repeat("x", 20<<10)+
		"\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	if !aborted {
		_, _ = c.Read(make([]byte, 1))
	}
}

// oddHTTP2 sends endless uploads, resets some, begins an endless header block, and disconnects.
func oddHTTP2(t *testing.T, at, path string, aborted bool) {
	c := terminated(t, at, "h2")
	defer c.NetConn().Close()
	_, _ = io.WriteString(c, http2.ClientPreface)
	frames := http2.NewFramer(c, c)
	_ = frames.WriteSettings()
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	const streams = 8
	for id := uint32(1); id < 2*streams; id += 2 {
		block.Reset()
		for name, value := range map[string]string{":method": "POST", ":scheme": "https", ":authority": cdn, ":path": path} {
			_ = fields.WriteField(hpack.HeaderField{Name: name, Value: value})
		}
		whole := id+2 < 2*streams
		_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: whole})
		if whole {
			_ = frames.WriteData(id, false, make([]byte, 1000))
		}
		if id%4 == 1 && whole {
			_ = frames.WriteRSTStream(id, http2.ErrCodeCancel)
		}
	}
	for !aborted { // until a stream has failed
		if f, err := frames.ReadFrame(); err != nil || f.Header().Type == http2.FrameRSTStream || f.Header().Type == http2.FrameHeaders {
			return
		}
	}
}

// kept is an intercepted connection over HTTP/1.1.
type kept struct {
	*proxytest.Rig
	raw *net.TCPConn
	tls *tls.Conn
	in  *bufio.Reader
	at  string // address for further connections
}

func keep(t *testing.T, budget *memory.Budget) *kept {
	t.Helper()
	r := proxytest.New(t, proxytest.Allow(cdn), func(c *proxy.Config) { c.Memory = budget })
	cert := r.Upstream.Certificate(t, cdn)
	server := r.Server(443, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
		for in := bufio.NewReader(s); ; {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = s.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
		}
	})
	r.Names.Set(cdn, server.Addr())
	r.Policy(proxytest.Allow(cdn), map[string]map[string]string{cdn: {"X-Key": "k"}})
	k := &kept{Rig: r, at: r.Listen(server)}
	k.raw = proxytest.DialTo(t, k.at)
	k.tls = tls.Client(k.raw, &tls.Config{ServerName: cdn, RootCAs: r.BoxCA.Pool(), NextProtos: []string{"http/1.1"}})
	k.in = bufio.NewReader(k.tls)
	if err := k.tls.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *kept) request() error {
	if _, err := k.tls.Write([]byte("GET / HTTP/1.1\r\nHost: " + cdn + "\r\n\r\n")); err != nil {
		return err
	}
	res, err := http.ReadResponse(k.in, nil)
	if err == nil {
		_ = res.Body.Close()
	}
	return err
}

// Memory charged for terminated TLS, with a running request and, at most, without.
const fullTLS, idleTLS = 208 << 10, 40 << 10

// TestIdleInterceptionsAreChargedForWhatTheyHold: an intercepted connection without a request releases memory that it does
// not use, and reserves all of it again before the next read from the client. If memory is short, it is closed.
func TestIdleInterceptionsAreChargedForWhatTheyHold(t *testing.T) {
	t.Parallel()
	budget := memory.New(64<<20, 4<<20)
	k := keep(t, budget)
	rests := func() {
		t.Helper()
		proxytest.Await(t, "the connection to rest", func() bool { return budget.InUse(memory.TLS) <= idleTLS })
		if budget.InUse(memory.TLS) == 0 {
			t.Error("an idle connection is not charged")
		}
	}
	rests()
	for range 3 {
		if err := k.request(); err != nil {
			t.Fatal(err)
		}
		if held := budget.InUse(memory.TLS); held != fullTLS && held > idleTLS {
			t.Errorf("%d bytes are charged", held)
		}
		rests()
	}
	account := budget.Account(string(k.Box.ID))
	taken := 0
	for account.Acquire(memory.Buffers, 16<<10) {
		taken += 16 << 10
	}
	if err := k.request(); err == nil {
		t.Error("without memory a request was served")
	}
	account.Release(memory.Buffers, taken)
	proxytest.Await(t, "every claim to be given back", func() bool { return budget.InUse(memory.TLS) == 0 })
}

// TestAttackIdleInterceptionHoldsMore: a client that sends the beginning of a record and goes idle, immediately or after
// its connection was idle, is charged for all memory that this may take.
func TestAttackIdleInterceptionHoldsMore(t *testing.T) {
	t.Parallel()
	for name, resting := range map[string]bool{"at once": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			budget := memory.New(64<<20, 64<<20)
			k := keep(t, budget)
			if err := k.request(); err != nil {
				t.Fatal(err)
			}
			if resting {
				proxytest.Await(t, "the connection to rest", func() bool { return budget.InUse(memory.TLS) <= idleTLS })
			}
			if _, err := k.raw.Write([]byte{23, 3, 3, 0x40, 0, 1, 2, 3}); err != nil {
				t.Fatal(err)
			}
			proxytest.Await(t, "the connection to be charged", func() bool { return budget.InUse(memory.TLS) == fullTLS })
			for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
				if held := budget.InUse(memory.TLS); held != fullTLS {
					t.Fatalf("with half a record, %d bytes are charged", held)
				}
			}
		})
	}
}
