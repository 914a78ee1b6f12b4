package ingress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
)

// rawApp is an application in a box that handles raw connections.
func rawApp(t *testing.T, serve func(*net.TCPConn)) net.Addr {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			}()
		}
	}()
	return ln.Addr()
}

// sendBack echoes all data.
func sendBack(c *net.TCPConn) { _, _ = io.Copy(c, struct{ io.Reader }{c}) }

// hold sends one byte and stays open silently.
func hold(c *net.TCPConn) {
	_, _ = c.Write([]byte("x"))
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{c})
	select {}
}

// connectRaw opens a connection to a public URL by TLS.
func (f *fixture) connectRaw(t *testing.T, host string, protocols ...string) (*tls.Conn, error) {
	t.Helper()
	c, err := net.Dial("tcp", f.https)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	secure := tls.Client(c, &tls.Config{RootCAs: f.roots, ServerName: host + domain, NextProtos: protocols})
	return secure, secure.HandshakeContext(t.Context())
}

// mustConnect is connectRaw to a URL whose application sends a byte first.
func (f *fixture) mustConnect(t *testing.T, host string) *tls.Conn {
	t.Helper()
	c, err := f.connectRaw(t, host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRawTCP passes bytes both ways, and each direction ends separately.
func TestRawTCP(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.exposeAt("a", rawApp(t, sendBack), Auth{Open: true}, TCP)
	c, err := f.connectRaw(t, "a")
	if err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d, %v", len(got), len(sent), err)
	}
	e := f.event(t, func(e audit.Event) bool { return e.BytesIn > 0 })
	if e.BytesIn != int64(len(sent)) || e.BytesOut != int64(len(sent)) || e.Verdict != policy.Allow || e.Name != "a"+domain || e.Method != "" || e.Error != "" {
		t.Errorf("%+v", e)
	}
	if f.woken.Load() != 1 {
		t.Error("the box was not woken")
	}
}

// TestRawTCPChoosesNoHTTP negotiates the protocol that a client offers, unless it is HTTP.
func TestRawTCPChoosesNoHTTP(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.exposeAt("a", rawApp(t, sendBack), Auth{Open: true}, TCP)
	for offered, want := range map[string]string{"": "", "postgresql": "postgresql", "postgresql,imap": "postgresql", "h2": "refused", "h2,http/1.1": "refused", "\x0a\x0a,h2,http/1.1": "refused", "postgresql,h2": "refused"} {
		var list []string
		if offered != "" {
			list = strings.Split(offered, ",")
		}
		c, err := f.connectRaw(t, "a", list...)
		if want == "refused" {
			if err == nil || !strings.Contains(err.Error(), "no application protocol") {
				t.Errorf("%s: %v", offered, err)
			}
			continue
		}
		if err != nil || c.ConnectionState().NegotiatedProtocol != want {
			t.Errorf("%q: %v, %v", offered, c.ConnectionState().NegotiatedProtocol, err)
		}
	}
}

// TestRawTCPIsNotHTTP sends HTTP requests to a URL of raw TCP, and raw bytes to an HTTP one.
func TestRawTCPIsNotHTTP(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	reached := make(chan struct{}, 10)
	f.exposeAt("a", rawApp(t, func(*net.TCPConn) { reached <- struct{}{} }), Auth{Open: true}, TCP)
	if res := f.raw(t, "GET / HTTP/1.1\r\nHost: a"+domain+"\r\n\r\n"); res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("over plain HTTP: %s", res.Status)
	}
	c, err := tls.Dial("tcp", f.https, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}) // without SNI
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a"+domain+"\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("without SNI: %v, %v", res, err)
	}
	app := record(t)
	f.expose("b", app.Server, Auth{Open: true})
	b, err := f.connectRaw(t, "b", "postgresql")
	if err == nil {
		t.Errorf("%q was agreed on for a URL of HTTP", b.ConnectionState().NegotiatedProtocol)
	}
	if len(reached) > 0 {
		t.Error("the application was reached")
	}
}

// TestRawTCPNeedsNoLessThanItsURL: a URL with a credential, which raw TCP cannot carry, lets no visitor in.
func TestRawTCPNeedsNoLessThanItsURL(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	reached := make(chan struct{}, 10)
	app := rawApp(t, func(*net.TCPConn) { reached <- struct{}{} })
	f.exposeAt("a", app, Auth{Bearer: digest(BearerDigest("token"))}, TCP)
	f.exposeAt("b", app, Auth{}, TCP)
	for _, host := range []string{"a", "b"} {
		c, err := f.connectRaw(t, host)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %d, %v", host, n, err)
		}
		f.event(t, func(e audit.Event) bool { return e.Reason == name.ReasonURLAuth && e.Name == host+domain })
	}
	if len(reached) > 0 || f.woken.Load() > 0 {
		t.Error("the application was reached")
	}
}

// TestRevocationCutsRawTCP ends idle connections, by URL and by box.
func TestRevocationCutsRawTCP(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	app := rawApp(t, hold)
	for name, revoke := range map[string]func(){
		"url": func() { f.CloseURL("url") }, "box": func() { f.CloseBox("box1") },
	} {
		f.exposeAt(name, app, Auth{Open: true}, TCP)
		c := f.mustConnect(t, name)
		f.remove(name + domain)
		revoke() // returns when the connection has ended
		if n := f.active.count(); n != 0 {
			t.Errorf("%s: %d connections go on", name, n)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		if e := f.event(t, func(e audit.Event) bool { return e.Name == name+domain }); e.Error != errCut.Error() || e.BytesOut != 1 {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// TestRawTCPIsLimited: one URL gets half of the requests, one address a quarter.
func TestRawTCPIsLimited(t *testing.T) {
	t.Parallel()
	f := start(t, func(cfg *Config) { cfg.Requests = 8 })
	f.exposeAt("a", rawApp(t, hold), Auth{Open: true}, TCP)
	f.mustConnect(t, "a")
	second := f.mustConnect(t, "a")
	third, err := f.connectRaw(t, "a")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := third.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("the third of one address was let in")
	}
	f.event(t, reason(name.ReasonLimit))
	socket.Reset(second)
	f.event(t, func(e audit.Event) bool { return e.Verdict == policy.Allow && e.Error != "" })
	f.mustConnect(t, "a")
}

// TestRawTCPHalfOpen has a visitor leave while the application ignores it: the connection is ended.
func TestRawTCPHalfOpen(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.halfOpen = 10 * time.Millisecond
	f.exposeAt("a", rawApp(t, hold), Auth{Open: true}, TCP)
	c := f.mustConnect(t, "a")
	_ = c.CloseWrite()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	f.event(t, func(e audit.Event) bool { return e.Name == "a"+domain && e.BytesOut == 1 })
}

// TestRawTCPWithoutApplication: a connection to a port without an application ends with a reset.
func TestRawTCPWithoutApplication(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	app := record(t)
	app.Close()
	f.exposeAt("a", app.Listener.Addr(), Auth{Open: true}, TCP)
	c, err := f.connectRaw(t, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	f.event(t, reason(name.ReasonURLUnavailable))
}
