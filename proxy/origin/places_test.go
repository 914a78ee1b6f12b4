package origin_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/internal/handshake"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/origin"
	"boxgate/proxy/proxytest"
)

// tally counts the connections that a server has open.
type tally struct {
	mu        sync.Mutex
	now, most int
}

func (c *tally) change(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
}

func (c *tally) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *tally) peak() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// counted starts an upstream whose connections are counted.
func counted(r *proxytest.Rig, secure, h2 bool, handler http.HandlerFunc) (*tally, *httptest.Server, uint16) {
	var c tally
	srv := httptest.NewUnstartedServer(handler)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			c.change(1)
		case http.StateClosed, http.StateHijacked:
			c.change(-1)
		}
	}
	if secure {
		srv.EnableHTTP2, srv.TLS = h2, &tls.Config{GetCertificate: r.Upstream.ForHello}
		srv.StartTLS()
	} else {
		srv.Start()
	}
	r.T.Cleanup(srv.Close)
	return &c, srv, proxytest.PortOf(r.T, srv.Listener)
}

// TestManyHostsLeaveFewConnections asks for more hosts than may be kept, over a few connections, and then hangs up.
func TestManyHostsLeaveFewConnections(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	c, _, port := counted(l, false, false, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) })
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	const clients, hosts = 4, 100
	var all sync.WaitGroup
	for k := range clients {
		conn := l.DialPair("", port, false)
		all.Go(func() {
			in := bufio.NewReader(conn)
			for i := range hosts {
				host := fmt.Sprintf("h%d-%d.example.com:%d", k, i, port)
				_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
				res, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if body, err := io.ReadAll(res.Body); err != nil || string(body) != host {
					t.Errorf("%s: %q, %v", host, body, err)
				}
			}
			_ = conn.Close()
		})
	}
	all.Wait()
	proxytest.Await(t, "the end of the connections beyond the cap", func() bool { return l.Upstreams() <= origin.MaxIdle && c.open() <= origin.MaxIdle })
	if got := proxytest.IdleUpstreams(l); got != origin.MaxIdle || l.Upstreams() != got {
		t.Errorf("%d connections kept in %d places, want %d", got, l.Upstreams(), origin.MaxIdle)
	}
	if c.peak() > origin.MaxIdle+clients+hosts/2 { // the server sees a connection end some time after it was closed
		t.Errorf("%d connections were open at once", c.peak())
	}
	l.Proxy.CloseBox(l.Box.ID)
	proxytest.Await(t, "the end of all", func() bool { return c.open() == 0 })
}

// TestBoxAtItsLimitOfUpstreams fills the places with requests under way: one more is refused, another box is served, and
// a place that waits goes to whoever needs one.
func TestBoxAtItsLimitOfUpstreams(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.MaxUpstreams = 2 })
	begun, goOn := make(chan struct{}, 3), make(chan struct{})
	c, _, port := counted(l, true, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			begun <- struct{}{}
			<-goOn
		}
		fmt.Fprint(w, "whole")
	})
	first, second := l.Box, l.NewBox("b2", "127.0.0.3")
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	request := func(path string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
	}
	type held struct {
		conn net.Conn
		in   *bufio.Reader
	}
	var under [2]held
	for i := range under {
		conn := l.DialPair(proxytest.API, port, true)
		under[i] = held{conn, bufio.NewReader(conn)}
		_, _ = io.WriteString(conn, request("/hold"))
		<-begun
	}
	extra := l.DialPair(proxytest.API, port, true)
	res := proxytest.Ask(t, extra, bufio.NewReader(extra), request("/"), "GET")
	if body := proxytest.ReadAll(t, res.Body); res.StatusCode != 503 || !strings.Contains(body, `"reason":"limit"`) {
		t.Errorf("beyond the limit: %s %s", res.Status, body)
	}
	if e := l.Events.Wait(t, 1)[0]; e.Reason != name.ReasonLimit || e.Verdict != policy.Deny || e.Action != audit.ActionRefuse || e.Status != 503 || e.Box != "box1" {
		t.Errorf("event %+v", e)
	}

	l.Box = second
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	other := l.DialPair(proxytest.API, port, true)
	if res := proxytest.Ask(t, other, bufio.NewReader(other), request("/"), "GET"); res.StatusCode != 200 {
		t.Errorf("the other box: %s", res.Status)
	}
	t.Cleanup(func() { l.Proxy.CloseBox("b2") })

	l.Box = first
	close(goOn)
	for _, u := range under {
		if res := proxytest.ReadResponse(t, u.in, "GET"); res.StatusCode != 200 || proxytest.ReadAll(t, res.Body) != "whole" {
			t.Errorf("a request under way: %s", res.Status)
		}
	}
	proxytest.Await(t, "the lending of both connections", func() bool { return proxytest.IdleUpstreams(l) == 2+1 })
	elsewhere := l.DialPair("other.example.com", port, true)
	res = proxytest.Ask(t, elsewhere, bufio.NewReader(elsewhere), strings.Replace(request("/"), "api.", "other.", 1), "GET")
	if res.StatusCode != 200 || l.Upstreams() > 2 {
		t.Errorf("with idle connections to give up: %s, %d places", res.Status, l.Upstreams())
	}
	proxytest.Await(t, "the end of the evicted connection", func() bool { return c.open() <= 2+1 })
}

// TestStreamsShareTheLimitOfUpstreams sends many parallel requests over one HTTP/2 connection to an HTTP/1.1 server, where each
// needs its own connection.
func TestStreamsShareTheLimitOfUpstreams(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	const max, streams = 8, 40
	l.With(func(c *proxy.Config) { c.MaxUpstreams = max })
	goOn := make(chan struct{})
	var begun atomic.Int32
	c, _, port := counted(l, true, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			begun.Add(1)
			<-goOn
		}
		fmt.Fprint(w, "whole")
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	client := l.HTTPClient(port, true)
	if res, _ := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	var served, refused atomic.Int32
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			res, err := client.Get("https://" + proxytest.HostPort(port) + "/hold")
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			switch {
			case err == nil && res.StatusCode == 200 && string(body) == "whole":
				served.Add(1)
			case err == nil && res.StatusCode == 503 && strings.Contains(string(body), `"reason":"limit"`):
				refused.Add(1)
			default:
				t.Errorf("%s %s %v", res.Status, body, err)
			}
		})
	}
	proxytest.Await(t, "the requests under way and the refusals", func() bool { return begun.Load() == max && refused.Load() == streams-max })
	close(goOn)
	all.Wait()
	if served.Load() != max || c.peak() != max {
		t.Errorf("%d served over %d connections, want %d", served.Load(), c.peak(), max)
	}
}

// TestEvictionBreaksNothing has more hosts in use than places: every request is served whole or refused for the limit.
func TestEvictionBreaksNothing(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		l.With(func(c *proxy.Config) { c.MaxUpstreams = 4 })
		_, _, port := counted(l, true, h2, func(w http.ResponseWriter, r *http.Request) {
			for range 4 {
				fmt.Fprint(w, strings.Repeat(r.Host, 200))
				w.(http.Flusher).Flush()
			}
		})
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		var served atomic.Int32
		var all sync.WaitGroup
		for k := range 8 {
			all.Go(func() {
				for i := range 15 {
					name := fmt.Sprintf("h%d.example.com", (k+i)%10)
					host := fmt.Sprintf("%s:%d", name, port)
					tr := &http.Transport{Protocols: new(http.Protocols)}
					tr.Protocols.SetHTTP1(!h2)
					tr.Protocols.SetHTTP2(h2)
					alpn := map[bool]string{false: "http/1.1", true: "h2"}[h2]
					tr.DialTLSContext = func(_ context.Context, _, _ string) (net.Conn, error) { return l.DialPair(name, port, true, alpn), nil }
					res, err := (&http.Client{Transport: tr}).Get("https://" + host + "/")
					if err != nil {
						t.Error(err)
						continue
					}
					body, err := io.ReadAll(res.Body)
					_ = res.Body.Close()
					tr.CloseIdleConnections()
					switch {
					case err == nil && res.StatusCode == 200 && string(body) == strings.Repeat(host, 800):
						served.Add(1)
					case err == nil && res.StatusCode == 503 && strings.Contains(string(body), `"reason":"limit"`):
					default:
						t.Errorf("h2 %v: %s, %d bytes, %v", h2, res.Status, len(body), err)
					}
					if n := l.Upstreams(); n > 4 {
						t.Errorf("h2 %v: %d places", h2, n)
					}
				}
			})
		}
		all.Wait()
		if served.Load() == 0 {
			t.Errorf("h2 %v: nothing was served", h2)
		}
		proxytest.Await(t, "the rest of all connections", func() bool { return l.Upstreams() == proxytest.IdleUpstreams(l) })
	}
}

// TestUpgradedConnectionTakesNoPlace opens more WebSockets than there are places: each counts as its client's connection.
func TestUpgradedConnectionTakesNoPlace(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.MaxUpstreams = 1 })
	port := l.RawServer(true, func(c net.Conn, in *bufio.Reader) {
		if r, err := http.ReadRequest(in); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
				"Sec-WebSocket-Accept: "+handshake.Accept(r.Header.Get("Sec-WebSocket-Key"))+"\r\n\r\n")
			_, _ = io.Copy(c, in)
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	for range 3 {
		c := l.DialPair(proxytest.API, port, true)
		in := bufio.NewReader(c)
		res := proxytest.Ask(t, c, in, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n\r\n", "GET")
		if res.StatusCode != 101 {
			t.Fatal(res.Status)
		}
		_, _ = io.WriteString(c, "echo")
		if b, err := in.Peek(4); err != nil || string(b) != "echo" {
			t.Fatalf("%q, %v", b, err)
		}
	}
	if n := l.Upstreams(); n != 0 {
		t.Errorf("%d places taken", n)
	}
}

// TestClosedHTTP2UpstreamIsForgottenAtOnce: the pool drops a connection that the server closes while it is idle, and its host.
func TestClosedHTTP2UpstreamIsForgottenAtOnce(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, srv, port := counted(l, true, true, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) })
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	client := l.HTTPClient(port, true)
	for range 3 {
		if res, body := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 || body != "HTTP/2.0" {
			t.Fatalf("%s %s", res.Status, body)
		}
		proxytest.Await(t, "the connection kept", func() bool { return proxytest.IdleUpstreams(l) == 1 && l.Upstreams() == 1 })
		srv.CloseClientConnections()
		proxytest.Await(t, "the end of the connection kept", func() bool { return proxytest.IdleUpstreams(l) == 0 && l.Upstreams() == 0 })
		if n := l.Core.Origins.Stats(l.Box.ID).Hosts; n != 0 {
			t.Errorf("%d hosts remembered", n)
		}
	}
}

// TestIdleUpstreamsEnd lets the time pass that a connection is kept for.
func TestIdleUpstreamsEnd(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		c, _, port := counted(l, true, h2, func(w http.ResponseWriter, r *http.Request) {})
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		if res, _ := proxytest.Get(t, l.HTTPClient(port, h2), "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
		proxytest.Await(t, "the connection kept", func() bool { return proxytest.IdleUpstreams(l) == 1 })
		l.Core.Origins.CloseIdle(l.Box.ID, time.Minute)
		if proxytest.IdleUpstreams(l) != 1 {
			t.Error("a fresh connection was closed")
		}
		l.Core.Origins.CloseIdle(l.Box.ID, 0)
		if n := l.Upstreams(); n != 0 {
			t.Errorf("h2 %v: %d places", h2, n)
		}
		proxytest.Await(t, "the end of the connection", func() bool { return c.open() == 0 })
	}
}
