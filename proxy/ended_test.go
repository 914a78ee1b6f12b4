package proxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

// slowServer answers every request with the head and the first bytes of an endless response.
func slowServer(r *proxytest.Rig, port uint16, cert *tls.Certificate, protocols ...string) netip.AddrPort {
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	}), Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	ln := &handed{conns: make(chan net.Conn), done: make(chan struct{})}
	r.T.Cleanup(func() { _ = srv.Close() })
	at := r.Server(port, func(c net.Conn) {
		if cert != nil {
			c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: protocols})
		}
		select {
		case ln.conns <- c:
		case <-ln.done:
		}
	})
	ln.at = at
	go func() { _ = srv.Serve(ln) }()
	return at
}

// handed is a listener for connections that were accepted elsewhere.
type handed struct {
	conns chan net.Conn
	at    netip.AddrPort
	close sync.Once
	done  chan struct{}
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handed) Close() error {
	h.close.Do(func() { close(h.done) })
	return nil
}

func (h *handed) Addr() net.Addr { return net.TCPAddrFromAddrPort(h.at) }

// openEverything opens a tunnel, running plain and intercepted requests over HTTP/1 and HTTP/2, and a connection that has
// sent nothing.
func openEverything(r *proxytest.Rig) {
	t := r.T
	cert := r.Upstream.Certificate(t, "api.example")
	slow, slow2 := slowServer(r, 443, &cert, "http/1.1"), slowServer(r, 8443, &cert, "h2", "http/1.1")
	plain := slowServer(r, 80, nil)
	spliced := r.TLSServer("spliced.example")
	r.Names.Set("api.example", slow.Addr(), slow2.Addr())
	r.Names.Grant("api.example", slow.Addr(), slow2.Addr())
	r.Names.Set("plain.example", plain.Addr())
	r.Names.Set("spliced.example", spliced.Addr())
	if got, err := r.Hello(r.Dial(spliced), "spliced.example"); err != nil {
		t.Fatal(got, err)
	}
	begun := func(res *http.Response, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if line, err := proxytest.FirstLine(res.Body); line != "begun" {
			t.Fatalf("%d %q, %v", res.StatusCode, line, err)
		}
	}
	c := r.Dial(plain)
	_, _ = io.WriteString(c, "GET /plain HTTP/1.1\r\nHost: plain.example\r\n\r\n")
	begun(http.ReadResponse(bufio.NewReader(c), nil))
	for to, h2 := range map[netip.AddrPort]bool{slow: false, slow2: true} {
		tr := &http.Transport{Protocols: new(http.Protocols), DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			cfg := &tls.Config{ServerName: "api.example", RootCAs: r.BoxCA.Pool(), NextProtos: []string{"http/1.1"}}
			if h2 {
				cfg.NextProtos = []string{"h2"}
			}
			c := tls.Client(r.Dial(to), cfg)
			return c, c.HandshakeContext(ctx)
		}}
		tr.Protocols.SetHTTP1(!h2)
		tr.Protocols.SetHTTP2(h2)
		begun((&http.Client{Transport: tr}).Get("https://" + map[bool]string{false: "api.example/h1", true: "api.example:8443/h2"}[h2]))
	}
	r.Dial(spliced) // sends nothing
}

// everything returns the policy for openEverything.
func everything() (policy.Spec, map[string]map[string]string) {
	return proxytest.Allow("api.example", "plain.example", "spliced.example"),
		map[string]map[string]string{"api.example": {"X": "y"}, "api.example:8443": {"X": "y"}}
}

// TestWhatEndsWithTheGatewaySaysSo: events of connections cut by a shutdown or by the removal of a box give that reason.
func TestWhatEndsWithTheGatewaySaysSo(t *testing.T) {
	for what, end := range map[string]func(*proxytest.Rig){
		"the gateway was shut down": func(r *proxytest.Rig) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			_ = r.Proxy.Shutdown(ctx)
		},
		"the box was removed": func(r *proxytest.Rig) { r.Proxy.CloseBox("box1") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
			r.Policy(everything())
			openEverything(r)
			proxytest.Await(t, "five connections", func() bool { return len(r.Live.Of("box1")) == 5 })
			end(r)
			for label, is := range map[string]func(audit.Event) bool{
				"tunnel": func(e audit.Event) bool { return e.Name == "spliced.example" && e.Action == audit.ActionSplice },
				"plain":  func(e audit.Event) bool { return e.Path == "/plain" },
				"h1":     func(e audit.Event) bool { return e.Path == "/h1" },
				"h2":     func(e audit.Event) bool { return e.Path == "/h2" },
			} {
				e := r.Want("the end of "+label, func(e audit.Event) bool { return is(e) && e.Phase != audit.PhaseOpen })
				if e.Verdict != policy.Allow || e.Reason != name.ReasonAllowedDomain || e.Error != what {
					t.Errorf("%s: %+v", label, e)
				}
			}
			r.Want("the silent one", func(e audit.Event) bool {
				return e.Verdict == policy.Deny && e.Reason == name.ReasonPeekTimeout && e.Error == what
			})
			for _, e := range r.Events.List() {
				if e.Reason == name.ReasonPolicyChanged {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

// TestEventsSayWhatWasDialled: the events of spliced and forwarded traffic contain the dialled address, not the one that
// the box claimed.
func TestEventsSayWhatWasDialled(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	r.Policy(proxytest.Allow("good.example"), nil)
	owner := r.TLSServer("good.example")
	web := r.Server(80, func(c net.Conn) {
		defer c.Close()
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	})
	trap, plainTrap := r.Trap(443), r.Trap(80)
	r.Names.Set("good.example", owner.Addr())
	for _, claimed := range []netip.AddrPort{trap, owner} {
		c := r.Dial(claimed)
		if got, err := r.Hello(c, "good.example"); err != nil {
			t.Fatal(got, err)
		}
		c.Close()
		want := map[bool]netip.Addr{true: trap.Addr()}[claimed == trap]
		r.Want("a splice to the owner", func(e audit.Event) bool {
			return e.Action == audit.ActionSplice && e.Addr == owner.Addr() && e.Claimed == want
		})
	}
	r.Names.Set("good.example", web.Addr())
	c := r.Dial(plainTrap)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
	_, _ = io.ReadAll(c)
	r.Want("a request to the owner", func(e audit.Event) bool {
		return e.Action == audit.ActionForward && e.Addr == web.Addr() && e.Claimed == plainTrap.Addr()
	})
}

// TestRecheckCutsLenientBytesOnceNamesDecide: a connection that counted as a protocol without names is cut when a name is
// denied.
func TestRecheckCutsLenientBytesOnceNamesDecide(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	r.Policy(proxytest.Allow(cdn), nil)
	echo := r.Server(8443, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	r.Names.Grant(cdn, echo.Addr())
	say := func(first string) net.Conn {
		c := r.Dial(echo)
		_, _ = io.WriteString(c, first)
		if _, err := io.ReadFull(c, make([]byte, len(first))); err != nil {
			t.Fatal(err)
		}
		return c
	}
	request, other := say("\r\nGET / HTTP/1.1\r\n"), say("EHLO x\r\n")
	spec := proxytest.Allow(cdn)
	spec.DeniedDomains = []string{static}
	r.Policy(spec, nil)
	r.Proxy.Recheck("box1")
	if echoes(r, request) {
		t.Error("possible requests are forwarded unread")
	}
	if !echoes(r, other) {
		t.Error("the other connection was disturbed")
	}
}
