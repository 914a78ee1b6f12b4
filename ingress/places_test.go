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
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// from connects as a visitor with another address.
func (f *fixture) from(t *testing.T, address string) *http.Client {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: f.roots},
		ForceAttemptHTTP2: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "tcp", f.https) },
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A visitor with many requests to a box that never answers gets a quarter of all requests at most, and a URL half. Other
// visitors are answered.
func TestOneVisitorDoesNotTakeAllRequests(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Requests = 16 })
	arrived := make(chan struct{}, 100)
	f.script(t, "silent", func(_ net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err == nil {
			arrived <- struct{}{}
			_, _ = io.Copy(io.Discard, in)
		}
	})
	box := record(t)
	f.expose("good", box.Server, Auth{Open: true})
	v := f.frames(t, "silent")
	for range 4 {
		v.ask(true, to("GET", "silent", "/")...)
		<-arrived
	}
	r := v.answer(v.ask(true, to("GET", "silent", "/")...))
	if r.status() != "429" || !strings.Contains(r.body, string(name.ReasonLimit)) {
		t.Fatalf("%+v", r)
	}
	retry := ""
	for _, h := range r.heads[0].Fields {
		if h.Name == "retry-after" {
			retry = h.Value
		}
	}
	if retry != "1" {
		t.Errorf("Retry-After %q", retry)
	}
	if resp, _ := get(t, f.from(t, "127.0.0.2"), "https://good"+domain+"/", nil); resp.StatusCode != 200 {
		t.Errorf("another visitor: %s", resp.Status)
	}
	f.expose("silent", box.Server, Auth{Open: true})
	f.CloseURL("silent")
	if r := v.answer(v.ask(true, to("GET", "silent", "/")...)); r.status() != "200" {
		t.Errorf("the places were not given back: %+v", r)
	}
}

// A stranger with many connections gets a quarter of a listener's at most. Others are served.
func TestOneVisitorDoesNotTakeAllConnections(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Connections = 16 })
	box := record(t)
	f.expose("one", box.Server, Auth{Bearer: digest(BearerDigest("tok"))})
	var open []net.Conn
	for range 4 {
		c := f.connectTo(t, "one"+domain)
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: one"+domain+"\r\nContent-Length: 5\r\n")
		open = append(open, c)
	}
	c := f.dial(t, f.https)
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a fifth connection is served")
	}
	f.event(t, func(e audit.Event) bool {
		return e.Reason == name.ReasonLimit && e.Peer == netip.MustParseAddr("127.0.0.1") && e.Verdict == policy.Deny
	})
	if resp, _ := get(t, f.from(t, "127.0.0.3"), "https://one"+domain+"/", nil); resp.StatusCode != 401 {
		t.Errorf("another visitor: %s", resp.Status)
	}
	for _, c := range open {
		c.Close()
	}
	for deadline := time.Now().Add(time.Minute); ; {
		c := f.dial(t, f.https)
		s := tls.Client(c, &tls.Config{RootCAs: f.roots, ServerName: "one" + domain})
		err := s.Handshake()
		c.Close()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the places were not given back: ", err)
		}
	}
}

// The URLs of one box get half of the connections at most, however many visitors they have. Another box can still be visited,
// and the box gets connections again when earlier ones have ended.
func TestOneURLDoesNotTakeAllConnections(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Connections = 16 })
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	f.exposeOf("two", "box2", box.Server)
	open := func(host, address string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		c, err := tls.DialWithDialer(&d, "tcp", f.https, &tls.Config{RootCAs: f.roots, ServerName: host + domain})
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+domain+"\r\n\r\n")
		_, err = c.Read(make([]byte, 1))
		return c, err
	}
	var held []net.Conn
	for i := range 8 {
		c, err := open("one", "127.0.0."+strconv.Itoa(10+i/2))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	if _, err := open("one", "127.0.0.20"); err == nil {
		t.Error("a ninth connection to one box is served")
	}
	f.event(t, func(e audit.Event) bool { return e.Reason == name.ReasonLimit && e.Error == errCrowdedURL.Error() })
	if _, err := open("two", "127.0.0.20"); err != nil {
		t.Errorf("another box: %v", err)
	}
	for _, c := range held {
		c.Close()
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := open("one", "127.0.0.20"); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the connections were not given back")
		}
	}
}

// A visitor with a /48 connects from many networks. Together they get half, and others are served.
func TestOneSiteDoesNotTakeAll(t *testing.T) {
	t.Parallel()
	p := places{most: 16}
	network := func(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("2001:db8:1:%x::/64", i)) }
	for i := range 8 {
		if !p.acquire("", network(i)) {
			t.Fatalf("network %d had no place", i)
		}
	}
	if p.acquire("", network(8)) {
		t.Error("a site has more than half")
	}
	for _, other := range []string{"2001:db8:2::/64", "192.0.2.1/32", "192.0.2.2/32"} {
		if !p.acquire("", netip.MustParsePrefix(other)) {
			t.Errorf("%s has no place", other)
		}
	}
	for i := range 8 {
		p.release("", network(i))
	}
	if !p.acquire("", network(9)) || len(p.peers) != 6 {
		t.Errorf("the places were not given back: %v", p.peers)
	}
}

// taken returns the number of places taken at the listeners.
func (f *fixture) taken() (n int) {
	f.Ingress.mu.Lock()
	defer f.Ingress.mu.Unlock()
	for _, l := range f.listeners {
		n += l.places.use().Taken
	}
	return n
}

// Four visitors fill the raw TCP of two boxes with connections that they hold for any time. New visitors still get a place and
// keep it: the oldest connections of the visitors with most give way.
func TestAttackConnectionsThatAreHeldForEver(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Connections = 64 })
	for i, host := range []string{"one", "two"} {
		target := f.exposeAt(host, rawApp(t, hold), Auth{Open: true}, TCP)
		target.Box = policy.BoxID("hostile" + strconv.Itoa(i))
		f.set(host+domain, target)
	}
	app := record(t)
	f.exposeOf("good0", "good0", app.Server)
	f.exposeOf("good1", "good1", app.Server)
	connect := func(host, address string) *tls.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		c, err := tls.DialWithDialer(&d, "tcp", f.https, &tls.Config{RootCAs: f.roots, ServerName: host + domain})
		if err != nil {
			return nil
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
	for i := range 4 {
		for j := range 24 {
			if c := connect([]string{"one", "two"}[j%2], "127.0.1."+strconv.Itoa(i+1)); c != nil {
				_, _ = c.Read(make([]byte, 1))
			}
		}
	}
	var good []*tls.Conn
	for i := range 14 {
		f.await(t, "the one that gave way to have gone", func() bool { return f.taken() <= 48 })
		c := connect("good"+strconv.Itoa(i%2), "127.0.2."+strconv.Itoa(i+1))
		if c == nil {
			t.Fatalf("visitor %d found no place", i)
		}
		good = append(good, c)
		for j, c := range good { // and earlier ones keep theirs
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: good"+strconv.Itoa(j%2)+domain+"\r\n\r\n")
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || res.StatusCode != 200 {
				t.Fatalf("visitor %d after %d had come: %v", j, i, err)
			}
			res.Body.Close()
		}
	}
	f.event(t, func(e audit.Event) bool { return e.Error == errGaveWay.Error() && e.Peer.String()[:8] == "127.0.1." })
}

// The last quarter is for holders of few places, however many others have reached their limits.
func TestTheLastPlacesAreForNewcomers(t *testing.T) {
	t.Parallel()
	p := places{most: 1000}
	network := func(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("10.0.%d.%d/32", i/256, i%256)) }
	for i := range 40 {
		for p.acquire("hostile"+strconv.Itoa(i%2), network(i)) {
		}
	}
	left := p.most - p.taken
	if left < 100 {
		t.Errorf("40 networks and two boxes leave %d of 1000", left)
	}
	for i := range left {
		if !p.acquire("", network(1000+i)) {
			t.Fatalf("newcomer %d found no place", i)
		}
	}
}

// TestNetworks: an address in one notation is the same in another, and a /64 is one visitor.
func TestNetworks(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "2001:db8::1": "2001:db8::/64", "2001:db8::ffff:0:0:1": "2001:db8::/64",
	} {
		if got := networkOf(&net.TCPAddr{IP: net.ParseIP(at)}); got.String() != want {
			t.Errorf("%s: %v", at, got)
		}
	}
}

// TestWhoGivesWay: for a box with many connections, those of the address with most give way first, beginning with silent ones;
// one from elsewhere with a running request gives way last.
func TestWhoGivesWay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	inOrder := []standing{
		{weight: 1, network: 1, use: 0, since: now},
		{weight: 1, network: 1, use: 1, since: now},
		{weight: 1, network: 1, use: 2, since: now.Add(-time.Hour)},
		{weight: 1, network: 1, use: 2, since: now},
		{weight: 1, network: 0.1, use: 0, since: now.Add(-time.Hour)},
		{weight: 1, network: 0.1, use: 2, since: now.Add(-time.Hour)},
		{weight: 0.5, network: 0.5, use: 0, since: now.Add(-time.Hour)},
	}
	for i, c := range inOrder {
		for j, other := range inOrder {
			if c.yieldsTo(other) != (i < j) {
				t.Errorf("%+v before %+v: %v", c, other, c.yieldsTo(other))
			}
		}
	}
}
