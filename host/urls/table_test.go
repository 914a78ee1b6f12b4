package urls

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/store"
)

const (
	boxA = policy.BoxID("0123456789abcdef")
	boxB = policy.BoxID("fedcba9876543210")
)

func shareA(tb *Table, change func(*store.SharedPorts)) {
	hash := store.KeyHash(ingress.BearerDigest("token"))
	p := store.SharedPorts{Box: boxA, Token: &hash, SharedAt: time.Now()}
	if change != nil {
		change(&p)
	}
	tb.share(sharedTarget(p, netip.MustParseAddr("10.200.0.2")))
}

// TestTableOrder: of a port's host names, the gateway's own handler comes first, then the URL of the port, then the shared ports of the
// box; for each form of the name.
func TestTableOrder(t *testing.T) {
	t.Parallel()
	for _, names := range []string{"flat", "nested"} {
		c := config.Ingress{Domain: "preview.test", Names: names}
		tb := NewTable(c, "auth.preview.test")
		tb.ServeName("api", http.NotFoundHandler())
		tb.ServePort(49983, func(id policy.BoxID) (http.Handler, bool) {
			if id == boxA {
				return http.NotFoundHandler(), true
			}
			return nil, false
		})
		shareA(tb, func(p *store.SharedPorts) {
			p.Except, p.HTTPS, p.Host = []uint16{22}, []uint16{8443}, "localhost:${PORT}"
		})
		tb.set([]string{c.HostName(boxA, 80), "app.example.org"}, ingress.Target{ID: "url", Box: boxA, Addr: netip.MustParseAddrPort("10.200.0.2:80"), Auth: ingress.Auth{Open: true}})
		for host, want := range map[string]string{
			"80-" + string(boxA) + ".preview.test": "url", c.HostName(boxA, 80): "url", "app.example.org": "url",
			"81-" + string(boxA) + ".preview.test": "shared", c.HostName(boxA, 81): "shared",
			"22-" + string(boxA) + ".preview.test": "", "81-" + string(boxB) + ".preview.test": "", c.HostName(boxB, 80): "",
			"49983-" + string(boxA) + ".preview.test": "own 49983", c.HostName(boxA, 49983): "own 49983", "49983-" + string(boxB) + ".preview.test": "",
			"api.preview.test": "own api", "api.evil.test": "", "x.api.preview.test": "", "auth.preview.test": "",
		} {
			got, ok := tb.Lookup(host)
			if want == "shared" {
				want = tb.sharedOf(boxA)
			}
			if got.ID != want || ok != (want != "") {
				t.Errorf("%s, %s: %q", names, host, got.ID)
			}
		}
		got, _ := tb.Lookup("8443-" + string(boxA) + ".preview.test")
		if got.Addr != netip.MustParseAddrPort("10.200.0.2:8443") || got.Host != "localhost:8443" || !got.TLS || got.Protocol != ingress.HTTP1 || got.Auth.Open || got.Auth.Bearer == nil {
			t.Errorf("%+v", got)
		}
		if url, _ := tb.Lookup(c.HostName(boxA, 80)); url.Auth.Withheld == nil || url.Auth.Bearer != nil {
			t.Errorf("the URL's application may get the token: %+v", url.Auth)
		}
	}
}

// TestTableOfTheGateway: boxes neither find nor remove the gateway's own handlers, and only names with an entry get certificates.
func TestTableOfTheGateway(t *testing.T) {
	t.Parallel()
	c := config.Ingress{Domain: "preview.test"}
	tb := NewTable(c, "auth.preview.test")
	tb.ServeName("api", http.NotFoundHandler())
	tb.ServePort(49983, func(id policy.BoxID) (http.Handler, bool) { return http.NotFoundHandler(), id == boxA })
	shareA(tb, nil)
	tb.set([]string{c.HostName(boxA, 80)}, ingress.Target{ID: "url", Box: boxA, Addr: netip.MustParseAddrPort("10.200.0.2:80"), Auth: ingress.Auth{Open: true}})
	for id, unknown := range map[policy.BoxID]bool{boxA: false, boxB: true} {
		if got, ok := tb.Lookup(c.HostName(id, 49983)); !ok || got.Box != id || got.Unknown != unknown {
			t.Errorf("the gateway's own port of %s: %+v", id, got)
		}
	}
	shared, url := "81-"+string(boxA)+".preview.test", c.HostName(boxA, 80)
	for host, want := range map[string][2]bool{ // found by boxes, certified
		"api.preview.test": {false, true}, "49983-" + string(boxA) + ".preview.test": {false, false}, shared: {true, false}, url: {true, true},
		"80-" + string(boxA) + ".preview.test": {true, false}, "auth.preview.test": {true, true}, "nobody.preview.test": {false, false},
	} {
		if got := [2]bool{tb.Has(host), tb.Certified(host)}; got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
	tb.RemoveID("url")
	for _, host := range []string{url, "80-" + string(boxA) + ".preview.test"} {
		if got, ok := tb.Lookup(host); !ok || got.ID != "url" || got.Auth.Open || got.Auth.Bearer != nil {
			t.Errorf("the shared ports take over the port of a URL that a successor has replaced: %+v", got.Auth)
		}
	}
	tb.RemoveID(tb.sharedOf(boxA))
	if tb.Has(shared) || !tb.Has(url) {
		t.Error("the shared ports outlive their end, or end the URL")
	}
	if tb.RemoveID("url"); tb.Has(url) {
		t.Error("a deleted URL is found")
	}
	shareA(tb, nil)
	tb.RemoveBox(boxA)
	tb.RemoveBox("")
	tb.RemoveID("own api")
	tb.remove("", 0)
	if tb.Has(shared) || tb.Has(url) {
		t.Error("a deleted box is found")
	}
	if _, ok := tb.Lookup("api.preview.test"); !ok {
		t.Error("the gateway's own name is gone")
	}
}
