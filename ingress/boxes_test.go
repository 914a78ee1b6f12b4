package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"boxgate/ingress/balancer"
	"boxgate/policy"
)

// boxConn is a connection of a box from an address.
type boxConn struct {
	net.Conn
	from net.Addr
}

func (c boxConn) RemoteAddr() net.Addr  { return c.from }
func (c boxConn) NetConn() net.Conn     { return c.Conn }
func (f *fixture) url(id string) string { return id + domain }

// visitFrom makes a connection of a box to a host, with a TLS handshake that names a server. It returns the box's end.
func (f *fixture) visitFrom(t *testing.T, at, host, sni string) (*tls.Conn, error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	box, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { box.Close() })
	_ = box.SetDeadline(time.Now().Add(time.Minute))
	served, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go f.Visit(boxConn{served, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(at))}, host) // Shutdown waits for it
	c := tls.Client(box, &tls.Config{ServerName: sni, RootCAs: f.roots})
	return c, c.Handshake()
}

// TestBoxesVisitPublicURLs: a box is a visitor with its own address, even if that is in a load balancer's network. Its
// connection serves only the host for which it was opened.
func TestBoxesVisitPublicURLs(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Balancers = balancer.List{netip.MustParsePrefix("10.200.0.0/16")} })
	app := record(t)
	f.expose("one", app.Server, Auth{Open: true})
	f.expose("two", app.Server, Auth{Open: true})
	get(t, f.client(t, false), "https://"+f.url("one")+"/", nil) // after this, the listener is ready
	c, err := f.visitFrom(t, "10.200.0.7:40000", f.url("one"), f.url("one"))
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}}
	defer client.CloseIdleConnections()
	get(t, &client, "https://"+f.url("one")+"/", func(r *http.Request) { r.Header.Set("X-Forwarded-For", "198.51.100.66") })
	if from := app.last(t).Header["X-Forwarded-For"]; len(from) != 1 || from[0] != "10.200.0.7" {
		t.Errorf("the visitor is %q", from)
	}
	before := app.count()
	c, err = f.visitFrom(t, "10.200.0.7:40001", f.url("one"), f.url("two"))
	if err == nil {
		_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: " + f.url("two") + "\r\n\r\n"))
		_, err = c.Read(make([]byte, 1))
	}
	if err == nil || app.count() != before {
		t.Errorf("a box that was let through for another host is served: %v", err)
	}
}

// TestBoxesLeaveRoomForOtherVisitors: boxes get part of the connections, and no box all of that part. The addresses of boxes
// are adjacent, but are counted separately.
func TestBoxesLeaveRoomForOtherVisitors(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Connections, c.ReadHeaderTimeout = 64, time.Hour })
	app := record(t)
	f.expose("one", app.Server, Auth{Open: true})
	f.exposeOf("two", "box2", app.Server)
	outside := f.client(t, false)
	get(t, outside, "https://"+f.url("one")+"/", nil)
	for i, box := range []string{"[fd42::1]:1", "[fd42::2]:1", "10.200.0.1:1"} {
		host := f.url([]string{"one", "two"}[i%2])
		for range 4 {
			if _, err := f.visitFrom(t, box, host, host); err != nil {
				t.Fatalf("%s: %v", box, err)
			}
		}
		if _, err := f.visitFrom(t, box, host, host); err == nil {
			t.Errorf("%s has more than a quarter of the boxes' connections", box)
		}
	}
	for i := range 8 {
		box := fmt.Sprintf("10.200.1.%d:1", i)
		if _, err := f.visitFrom(t, box, f.url("two"), f.url("two")); err != nil {
			t.Errorf("%s finds no place beside boxes that hold theirs: %v", box, err)
		}
	}
	if n := f.boxes.open(); n > 16 {
		t.Errorf("boxes have %d connections, more than a quarter of all", n)
	}
	outside.CloseIdleConnections()
	get(t, outside, "https://"+f.url("two")+"/", nil)
}

// TestBoxesLeaveRequestsToOtherVisitors: unanswered requests of any number of boxes take a quarter of all at most.
func TestBoxesLeaveRequestsToOtherVisitors(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Requests = 64 })
	arrived := make(chan struct{}, 100)
	silent := func(_ net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err == nil {
			arrived <- struct{}{}
			_, _ = io.Copy(io.Discard, in)
		}
	}
	for i, host := range []string{"one", "two", "three"} {
		f.script(t, host, silent)
		target, _ := f.Lookup(host + domain)
		target.Box = policy.BoxID(fmt.Sprint("hostile", i))
		f.set(host+domain, target)
	}
	app := record(t)
	f.expose("good", app.Server, Auth{Open: true})
	get(t, f.client(t, false), "https://"+f.url("good")+"/", nil)
	ask := func(box, id string) *tls.Conn {
		c, err := f.visitFrom(t, box, f.url(id), f.url(id))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+f.url(id)+"\r\n\r\n")
		return c
	}
	refused := func(box, id string) {
		t.Helper()
		if res, err := http.ReadResponse(bufio.NewReader(ask(box, id)), nil); err != nil || res.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s is answered %v, %v", box, res, err)
		}
	}
	for i, box := range []string{"10.200.0.1:1", "10.200.0.2:1", "10.200.0.3:1"} {
		for range 4 {
			ask(box, []string{"one", "two"}[i%2])
			<-arrived
		}
		refused(box, "good")
	}
	ask("10.200.0.4:1", "three") // the last quarter is for boxes with few requests
	<-arrived
	refused("10.200.0.4:1", "three")
	refused("10.200.0.5:1", "one")
	if res, _ := get(t, f.client(t, false), "https://"+f.url("good")+"/", nil); res.StatusCode != 200 {
		t.Errorf("another visitor gets %d", res.StatusCode)
	}
}
