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
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/ingress/access"
	"boxgate/ingress/link"
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

// A visitor with a /48 or a /56 connects from many networks. Together they get half or three eighths, and others are served.
func TestOneSiteDoesNotTakeAll(t *testing.T) {
	t.Parallel()
	for bits, most := range map[int]int{48: 8, 56: 6} {
		p := places{most: 16}
		network := func(i int) netip.Prefix {
			return netip.MustParsePrefix(fmt.Sprintf("2001:db8:1:%x::/64", i<<(56-bits)))
		}
		for i := range most {
			if !p.acquire("", network(i)) {
				t.Fatalf("/%d: network %d had no place", bits, i)
			}
		}
		if p.acquire("", network(most)) {
			t.Errorf("a /%d has more than %d", bits, most)
		}
		for _, other := range []string{"2001:db8:2::/64", "192.0.2.1/32", "192.0.2.2/32"} {
			if !p.acquire("", netip.MustParsePrefix(other)) {
				t.Errorf("%s has no place", other)
			}
		}
		for i := range most {
			p.release("", network(i))
		}
		if !p.acquire("", network(9)) || len(p.peers) != 8 {
			t.Errorf("the places were not given back: %v", p.peers)
		}
	}
}

// TestNewcomersOfACrowdedSite: in a /48 that has all of its places, the connections of the network with the most give way to a newcomer,
// silent and idle ones first. A neighbour with one connection keeps it, and nobody else's is ended.
func TestNewcomersOfACrowdedSite(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := &listener{g: start(t, nil).Ingress, conns: map[net.Conn]*held{}, places: places{most: 32}}
	conns := map[string]net.Conn{}
	enter := func(name, network string, use int, age time.Duration) bool {
		a, _ := net.Pipe()
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.placeLocked(netip.MustParsePrefix(network), now) {
			return false
		}
		h := &held{network: netip.MustParsePrefix(network), since: now.Add(-age), freeSlot: func() {}, first: make(chan struct{})}
		h.asked.Store(use > 0)
		h.busy.Store(use > 1)
		l.conns[a], conns[name] = h, a
		return true
	}
	left := func() (left []string) {
		for name, c := range conns {
			if h := l.conns[c]; h.leaves {
				left = append(left, name)
				l.release(c)
				delete(conns, name)
			}
		}
		slices.Sort(left)
		return left
	}
	enter("elsewhere", "2001:db8:2::/64", 0, time.Hour)
	enter("neighbour", "2001:db8:1:100::/64", 1, time.Hour)
	for i := range 5 { // a customer with one /64
		enter("single"+strconv.Itoa(i), "2001:db8:1:200::/64", 2, time.Hour)
	}
	for i := range 10 { // a customer with a /56
		enter("many"+strconv.Itoa(i), fmt.Sprintf("2001:db8:1:3%02x::/64", i), i%3, time.Minute+time.Duration(i)*time.Second)
	}
	if gone := left(); gone != nil || l.places.taken != 17 {
		t.Fatalf("%v, and %d places", gone, l.places.taken)
	}
	for i, want := range []string{"many9", "many6", "many3", "many0", "many7"} {
		if !enter("new"+strconv.Itoa(i), fmt.Sprintf("2001:db8:1:4%02x::/64", i), 1, 0) {
			t.Fatalf("newcomer %d found no place", i)
		}
		if gone := left(); !slices.Equal(gone, []string{want}) || l.places.taken != 17 {
			t.Errorf("newcomer %d: %v gave way, want %s; %d places", i, gone, want, l.places.taken)
		}
	}
	for i := range 20 { // by itself, a customer takes no place of others
		enter("greedy"+strconv.Itoa(i), "2001:db8:1:500::/64", 2, 0)
		left()
	}
	for _, name := range []string{"elsewhere", "neighbour"} {
		if conns[name] == nil {
			t.Errorf("%s gave way", name)
		}
	}
	if n := l.places.peers[netip.MustParsePrefix("2001:db8:1:500::/64")]; n > 8 || l.places.taken != 17 {
		t.Errorf("a /64 has %d places, and all %d", n, l.places.taken)
	}
	for _, c := range conns {
		l.release(c)
	}
	if l.places.taken != 0 || len(l.places.peers) != 0 {
		t.Errorf("%d places were not given back: %v", l.places.taken, l.places.peers)
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

// An address that exceeds its rate is asked to come again later, over both versions of HTTP together. Others, and other URLs,
// are served.
func TestRequestsASecond(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.RequestRate = 1 })
	f.tallies.mu.Lock()
	f.tallies.refill = 1e-9 // no refill within the test
	f.tallies.mu.Unlock()
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	f.expose("two", box.Server, Auth{Open: true})
	h1, h2 := f.client(t, false), f.client(t, true)
	for _, c := range []struct {
		h2     bool
		status int
	}{{false, 200}, {true, 200}, {false, 429}, {true, 429}} {
		client := h1
		if c.h2 {
			client = h2
		}
		resp, body := get(t, client, "https://one"+domain+"/", nil)
		if resp.StatusCode != c.status {
			t.Fatalf("%+v: %s", c, resp.Status)
		}
		if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); c.status == 429 && (err != nil || n < 1 || !strings.Contains(body, string(name.ReasonLimit))) {
			t.Errorf("Retry-After %q, %s", resp.Header.Get("Retry-After"), body)
		}
	}
	if box.count() != 2 {
		t.Errorf("%d requests reached the box", box.count())
	}
	for what, resp := range map[string]func() int{
		"another URL":     func() int { r, _ := get(t, h2, "https://two"+domain+"/", nil); return r.StatusCode },
		"another visitor": func() int { r, _ := get(t, f.from(t, "127.0.0.2"), "https://one"+domain+"/", nil); return r.StatusCode },
		"plain HTTP":      func() int { return f.raw(t, "GET / HTTP/1.1\r\nHost: one"+domain+"\r\n\r\n").StatusCode },
	} {
		if status := resp(); status != 200 {
			t.Errorf("%s: %d", what, status)
		}
	}
	f.event(t, reason(name.ReasonLimit))
}

// After too many wrong credentials from an address, its right one is not checked for the rest of a minute. Requests without a
// credential do not count, and other addresses and URLs are unaffected.
func TestWrongCredentialsBarAnAddress(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.FailedCredentials = 3 })
	f.tallies.mu.Lock()
	f.tallies.window = time.Hour // longer than the test
	f.tallies.mu.Unlock()
	box := record(t)
	for _, host := range []string{"one", "two"} {
		f.expose(host, box.Server, Auth{Bearer: digest(BearerDigest("right")), Basic: digest(BasicDigest("u", "right"))})
	}
	f.expose("open", box.Server, Auth{Open: true})
	h1, h2 := f.client(t, false), f.client(t, true)
	ask := func(c *http.Client, host string, edit func(*http.Request)) *http.Response {
		resp, _ := get(t, c, "https://"+host+domain+"/", edit)
		return resp
	}
	with := func(authorization string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", authorization) }
	}
	right := with("Bearer right")
	for range 5 {
		if got := ask(h2, "one", nil).StatusCode; got != 401 {
			t.Fatalf("without a credential: %d", got)
		}
	}
	if got := ask(h2, "one", right).StatusCode; got != 200 {
		t.Fatalf("the right one: %d", got)
	}
	for i, wrong := range []string{"Bearer wrong", "Basic dTp3cm9uZw==", "nonsense"} {
		c := h1
		if i == 1 {
			c = h2
		}
		if got := ask(c, "one", with(wrong)).StatusCode; got != 401 {
			t.Fatalf("%s: %d", wrong, got)
		}
	}
	before := box.count()
	for _, c := range []*http.Client{h1, h2} { // h2 had the right one accepted before
		for what, edit := range map[string]func(*http.Request){"right": right, "wrong": with("Bearer wrong"), "none": nil} {
			resp := ask(c, "one", edit)
			wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			if resp.StatusCode != 429 || err != nil || wait < 1 || wait > 3600 || resp.Header["Www-Authenticate"] != nil {
				t.Errorf("%s: %s, %v", what, resp.Status, resp.Header)
			}
		}
	}
	if box.count() != before {
		t.Error("a barred address reached the box")
	}
	if got := ask(f.from(t, "127.0.0.2"), "one", right).StatusCode; got != 200 {
		t.Errorf("another visitor: %d", got)
	}
	for host, edit := range map[string]func(*http.Request){"two": right, "open": with("Bearer wrong")} {
		if got := ask(h2, host, edit).StatusCode; got != 200 {
			t.Errorf("%s: %d", host, got)
		}
	}
}

// Pages of other sites make a visitor's browser send wrong credentials: only such requests are barred, not the visitor's
// address. When the address itself is barred, a signed-in browser stays signed in.
func TestAttackAnotherSiteBarsAnAddress(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.FailedCredentials = 3 })
	one := f.guarded("one", record(t))
	one.Access.Links = access.NewKey()
	f.set("one"+domain, one)
	c := f.client(t, true)
	cookie := signIn(t, c, "one")
	signed := "https://one" + domain + "/?boxgate_link=" + link.Sign(one.Access.Links, one.ID, link.Link{Expires: time.Now().Add(time.Hour), Prefix: "/", Methods: []string{"GET"}})
	ask := func(what, address string, want int, edits ...func(*http.Request)) {
		t.Helper()
		resp, _ := get(t, c, address, func(r *http.Request) {
			browser(r)
			for _, edit := range edits {
				edit(r)
			}
		})
		if resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", what, resp.Status, want)
		}
	}
	home, foreign := "https://one"+domain+"/", with("Sec-Fetch-Site", "cross-site")
	bearer := with("Authorization", "Bearer tok")
	for range 5 {
		ask("a link in a page", home+"?boxgate_link=x", 401, foreign)
	}
	for i := range 5 {
		want := 401
		if i >= 3 {
			want = 429
		}
		ask("a token in a frame", home+"?boxgate_token=x", want, foreign)
	}
	ask("the right token in a frame", home+"?boxgate_token=tok", 429, foreign)
	ask("a link from another site", home, 401, foreign)
	ask("the token", home, 200, bearer)
	ask("a session", home, 200, with("Cookie", cookie))
	for range 3 {
		ask("a guess", home, 401, with("Authorization", "Bearer wrong"))
	}
	ask("the token of a barred address", home, 429, bearer)
	ask("a session of one", home, 200, with("Cookie", cookie))
	ask("a signed link of one", signed, 200)
	ask("a guess in an address, with a session", home+"?boxgate_token=tok", 429, with("Cookie", cookie))
	ask("another site at one", home+"?boxgate_token=tok", 429, foreign)
}

// An address is barred for the rest of the minute, and then has all its attempts again.
func TestBarEndsWithTheMinute(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	y := &tally{most: 2, window: time.Minute}
	y.failed(at)
	y.failed(at.Add(50 * time.Second))
	if got := y.barred(at.Add(55 * time.Second)); got != 5*time.Second {
		t.Errorf("barred for %v", got)
	}
	if got := y.barred(at.Add(time.Minute)); got != 0 {
		t.Errorf("after a minute, barred for %v", got)
	}
	y.failed(at.Add(61 * time.Second))
	if got := y.barred(at.Add(61 * time.Second)); got != 0 {
		t.Errorf("after one failure of a new minute, barred for %v", got)
	}
}

// A visitor with a /48 gets no further requests or guesses by changing networks; another site has its own.
func TestAttackNetworksOfOneSite(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	network := func(site, n int) netip.Prefix {
		return netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x:%x::/64", site, n))
	}
	for what, once := range map[string]func(*tally) bool{
		"requests": func(y *tally) bool { return !y.request(at) },
		"guesses": func(y *tally) bool {
			if y.barred(at) > 0 {
				return false
			}
			y.failed(at)
			return true
		},
		"forms": func(y *tally) bool { return y.attempt(at) == 0 },
	} {
		all := tallies{refill: 1e-9, burst: 2, failures: 2, window: time.Minute}
		for _, step := range []int{1, 256} { // networks of a /56, then of its /48
			passed := 0
			for n := range 100 {
				for range 3 {
					if once(all.of("url", network(1, n*step))) {
						passed++
					}
				}
			}
			if want := 2 * shares[1]; passed != want { // the /56 has half of the /48
				t.Errorf("%s: %d of one site, want %d", what, passed, want)
			}
		}
		if !once(all.of("url", network(2, 0))) || !once(all.of("other", network(1, 0))) || !once(all.of("url", netip.MustParsePrefix("192.0.2.1/32"))) {
			t.Errorf("%s: another site, URL or address has none", what)
		}
	}
	all := tallies{failures: 1, window: time.Minute}
	for n := range 100 { // right credentials use up no attempts
		y := all.of("url", network(1, n))
		if y.attempt(at) > 0 {
			t.Fatal("a right credential counts")
		}
		y.right()
	}
}

// Tallies stay within their limit for any number of addresses, and no request goes uncounted.
func TestTalliesAreBounded(t *testing.T) {
	t.Parallel()
	all := tallies{refill: 1, burst: 1}
	first := netip.MustParseAddr("2001:db8::")
	for i := range talliesMost + 100 {
		a := first.As16()
		a[5], a[6], a[7] = byte(i>>16), byte(i>>8), byte(i)
		network, _ := netip.AddrFrom16(a).Prefix(64)
		if all.of(fmt.Sprint("url", i%3), network) == nil {
			t.Fatal("a network without tally")
		}
	}
	if n := len(all.kept); n != talliesMost {
		t.Errorf("%d are kept", n)
	}
	if all.of("url", netip.Prefix{}) != nil {
		t.Error("a network that is not known has a tally")
	}
}

// A neighbour's page sets cookies for the domain that all URLs share. Browsers do not recognize the gateway's prefix in their
// names, but a parser that trims every kind of space would. These cookies neither sign a visitor in nor hide the real cookie.
func TestCookiesOfANeighbour(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		f := start(t, nil)
		f.guarded("one", record(t))
		c := f.client(t, h2)
		good := signIn(t, c, "one")
		for _, space := range []string{"\u2000", "\u00a0", "\u0085", "\u3000"} {
			for line, want := range map[string]int{
				strings.Repeat(space+access.Cookie+"=x; ", 4) + good: 200,
				space + good:            401,
				"a=b; " + space + good:  401,
				"a=b; \t" + good + "; ": 200,
			} {
				resp, _ := get(t, c, "https://one"+domain+"/", func(r *http.Request) { r.Header["Cookie"] = []string{line} })
				if resp.StatusCode != want {
					t.Errorf("h2 %v, %q: %s, want %d", h2, line, resp.Status, want)
				}
			}
		}
	}
}
