package http2_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// mixedServer speaks HTTP/2 with one stream at a time on its first connection, and HTTP/1.1 on all others, as servers behind
// one name may. It answers everything but /hang with the body of the request.
type mixedServer struct {
	tls   *tls.Config
	conns atomic.Int64
	over1 atomic.Int64 // requests over HTTP/1.1
}

func (m *mixedServer) serve(c net.Conn) {
	defer c.Close()
	config, first := m.tls.Clone(), m.conns.Add(1) == 1
	if config.NextProtos = []string{"http/1.1"}; first {
		config.NextProtos = []string{"h2"}
	}
	s := tls.Server(c, config)
	if s.Handshake() != nil {
		return
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 {
			m.over1.Add(1)
		}
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
			return
		}
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, string(body), err)
	})
	if first {
		//lint:ignore SA1019 the connection is the test's own
		(&http2.Server{MaxConcurrentStreams: 1}).ServeConn(s, &http2.ServeConnOpts{Handler: handler})
		return
	}
	ln := &oneConn{conn: s, closed: make(chan struct{})}
	server := &http.Server{Handler: handler, ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			ln.Close()
		}
	}}
	_ = server.Serve(ln)
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn   net.Conn
	taken  atomic.Bool
	closed chan struct{}
	done   atomic.Bool
}

func (l *oneConn) Accept() (net.Conn, error) {
	if l.taken.CompareAndSwap(false, true) {
		return l.conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	if l.done.CompareAndSwap(false, true) {
		close(l.closed)
	}
	return nil
}

func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// TestAttackBodyTakenBeforeAnotherServer: a request is taken from its client whole, finds no room on a connection over HTTP/2,
// and goes to a server that speaks HTTP/1.1, with all of its body. If a part were missing, the server would take the next request
// for it, and the request hidden in that would never be judged.
func TestAttackBodyTakenBeforeAnotherServer(t *testing.T) {
	t.Parallel()
	over1 := int64(0)
	for range 10 {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		m := &mixedServer{tls: &tls.Config{GetCertificate: l.Upstream.ForHello}}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
				go m.serve(c)
			}
		}()
		port := proxytest.PortOf(t, ln)
		l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
		c := l.DialPair(proxytest.API, port, true, "h2")
		r := newRawH2(t, c)
		head := func(method, path string) []string {
			return []string{":method", method, ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", path}
		}
		if s := r.ask(head("GET", "/")...); s != "200" {
			t.Fatal(s)
		}
		// In one write: a request whose trailers require waiting, and one that takes the only stream during that wait.
		var out bytes.Buffer
		frames := http2.NewFramer(&out, nil)
		block := func(fields ...string) []byte {
			r.buf.Reset()
			for i := 0; i < len(fields); i += 2 {
				_ = r.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // into memory
			}
			return bytes.Clone(r.buf.Bytes())
		}
		id, body := r.stream, strings.Repeat("x", 280)
		_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(append(head("POST", "/"), "content-length", "280")...), EndHeaders: true})
		_ = frames.WriteData(id, false, []byte(body))
		_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block("x-trailer", "1"), EndHeaders: true, EndStream: true})
		_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id + 2, BlockFragment: block(head("GET", "/hang")...), EndHeaders: true, EndStream: true})
		if _, err := c.Write(out.Bytes()); err != nil {
			t.Fatal(err)
		}
		if status, got := r.response(id); status != "200" || got != body+"<nil>" {
			t.Errorf("%s %q", status, got)
		}
		over1 += m.over1.Load()
		ln.Close()
	}
	t.Logf("%d requests went over HTTP/1.1", over1)
}

// response reads the status and the content of a response.
func (r *rawH2) response(id uint32) (status, content string) {
	for {
		f, err := r.framer.ReadFrame()
		if err != nil {
			return err.Error(), content
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID == id && status == "" {
				status = f.PseudoValue("status")
			}
		case *http2.DataFrame:
			if f.StreamID == id {
				content += string(f.Data())
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return f.ErrCode.String(), content
			}
		}
		if h := f.Header(); h.StreamID == id && h.Flags.Has(http2.FlagDataEndStream) {
			return status, content
		}
	}
}

// Requests that are refused for their form count towards the limit like served ones.
func TestAttackFloodOfRequestsWithFieldsOfHTTP1(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.MaxRequests = 1 })
	_, port := l.HTTPSServer(true, nil)
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	r := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
	for range 20 {
		if r.send(":method", "GET", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", "/", "connection", "close") != nil {
			break
		}
	}
	for {
		if _, err := r.framer.ReadFrame(); err != nil {
			break // the connection has ended
		}
	}
	l.Proxy.CloseBox(l.Box.ID)
	limited := false
	for _, e := range l.Events.Wait(t, 3) {
		limited = limited || e.Reason == name.ReasonLimit
	}
	if !limited {
		t.Error("no refusal is for the limit")
	}
}

// TestAttackUpstreamTextInErrors: a server knows the secret and writes it where errors of the HTTP/2 library quote it. Neither
// the log nor the answer to the box may quote text of the server.
func TestAttackUpstreamTextInErrors(t *testing.T) {
	t.Parallel()
	const secret = "sk-canary-0123456789"
	for name, misdeed := range map[string]func(s *rogue, stream uint32){
		"GOAWAY": func(s *rogue, stream uint32) {
			_ = s.WriteGoAway(stream, http2.ErrCodeEnhanceYourCalm, []byte(secret))
			_ = s.conn.Close()
		},
		"GOAWAY without an error": func(s *rogue, stream uint32) {
			_ = s.WriteGoAway(stream, http2.ErrCodeNo, []byte(secret))
			_ = s.conn.Close()
		},
		"GOAWAY in the body": func(s *rogue, stream uint32) {
			s.head(stream, false, ":status", "200")
			_ = s.WriteGoAway(stream, http2.ErrCodeProtocol, []byte(secret))
			_ = s.conn.Close()
		},
		"name of a field": func(s *rogue, stream uint32) {
			s.head(stream, true, ":status", "200", "X "+secret, "1")
		},
		"capital letters": func(s *rogue, stream uint32) {
			s.head(stream, true, ":status", "200", "Sk-canary-0123456789", "1")
		},
		"pseudo field": func(s *rogue, stream uint32) {
			s.head(stream, true, ":status", "200", ":"+secret, "1")
		},
		"status": func(s *rogue, stream uint32) { s.head(stream, true, ":status", secret) },
		"length": func(s *rogue, stream uint32) {
			s.head(stream, true, ":status", "200", "content-length", secret)
		},
		"trailer": func(s *rogue, stream uint32) {
			s.head(stream, false, ":status", "200")
			s.head(stream, true, "X "+secret, "1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			var conns atomic.Int32
			port := rogueServer(l, misdeed, &conns)
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			c := l.HTTPClient(port, true)
			got := ""
			if res, err := c.Get("https://" + proxytest.HostPort(port) + "/bad"); err == nil {
				body, _ := io.ReadAll(res.Body) // it may be broken off
				got = fmt.Sprint(res.Status, res.Header, string(body))
				_ = res.Body.Close()
			}
			for _, e := range l.Events.Wait(t, 1) {
				got += fmt.Sprintf("%+v", e)
			}
			if strings.Contains(strings.ToLower(got), "canary") {
				t.Errorf("the log or the box shows %s", got)
			}
		})
	}
}
