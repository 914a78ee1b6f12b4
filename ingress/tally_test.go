package ingress

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/ingress/access"
	"boxgate/ingress/link"
	"boxgate/policy/name"
)

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
		passed := 0
		for n := range 100 {
			for range 3 {
				if once(all.of("url", network(1, n))) {
					passed++
				}
			}
		}
		if passed != 2*siteShare {
			t.Errorf("%s: %d of one site", what, passed)
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
