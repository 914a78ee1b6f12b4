package name

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

var hostSeeds = []string{
	"api.github.com", "API.GitHub.com.", "bücher.de", "xn--bcher-kva.de", "_acme-challenge.a.test", "r3---sn-h5q7dne7.googlevideo.com",
	"localhost", "*.a.test", "*", "*:443", "a.test:8443", "*foo.com", "a*.com", "https://a.test/x", "127.1", "0x7f.1", "2130706433",
	"[::1]:443", "::ffff:1.2.3.4", "1.2.3.4", "foo.0x", "a..b", ".", "", "a.test..", "１２７.0.0.1", "例え。テスト", "ß.de", "a\u200db.de", "℀.com",
	"xn--a.com", "xn--.com", "xn--example-.com", "a\x00.test", "a%2eb.test", "-a-.test", strings.Repeat("a", 64) + ".test",
}

// FuzzParseName: an accepted name is canonical, cannot be read as an address, and parses to itself.
func FuzzParseName(f *testing.F) {
	for _, s := range hostSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Parse(s)
		if err != nil {
			if !n.IsZero() {
				t.Fatalf("%q: refused, yet a name came back", s)
			}
			checkMessage(t, err)
			return
		}
		if again, err := Parse(n.String()); err != nil || again != n {
			t.Fatalf("%q: %q parses to %q, %v", s, n, again, err)
		}
		text := n.String()
		if len(text) == 0 || len(text) > 253 || strings.ToLower(text) != text || strings.HasSuffix(text, ".") {
			t.Fatalf("%q: %q is not canonical", s, text)
		}
		if _, err := netip.ParseAddr(text); err == nil {
			t.Fatalf("%q: %q is an address", s, text)
		}
		last := text[strings.LastIndexByte(text, '.')+1:]
		if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
			t.Fatalf("%q: %q ends in a number", s, text)
		}
		for _, label := range strings.Split(text, ".") {
			if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
				t.Fatalf("%q: bad label %q", s, label)
			}
		}
	})
}

// FuzzParsePattern: the canonical text parses to the same pattern, which covers the intended names and no similar ones.
func FuzzParsePattern(f *testing.F) {
	for _, s := range hostSeeds {
		f.Add(s)
	}
	below, _ := Parse("x.y.z.test")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePattern(s)
		if err != nil {
			if p != (Pattern{}) || p.Match(below, 0) {
				t.Fatalf("%q: refused, yet a pattern came back", s)
			}
			checkMessage(t, err)
			return
		}
		if again, err := ParsePattern(p.String()); err != nil || again != p {
			t.Fatalf("%q: %q parses to %q, %v", s, p, again, err)
		}
		if p.Match(Name{}, p.Port()) {
			t.Fatalf("%q covers no name at all", s)
		}
		if p.Name().IsZero() {
			if !p.IsWildcard() || !p.Match(below, p.Port()) {
				t.Fatalf("%q does not cover any name", s)
			}
			return
		}
		if p.Match(p.Name(), p.Port()) == p.IsWildcard() {
			t.Fatalf("%q: wrong about the name itself", s)
		}
		if evil, err := Parse("evil-" + p.Name().String()); err == nil && p.Match(evil, p.Port()) {
			t.Fatalf("%q covers %q", s, evil)
		}
		if child, err := Parse("a.b." + p.Name().String()); err == nil && p.Match(child, p.Port()) != p.IsWildcard() {
			t.Fatalf("%q: wrong about %q", s, child)
		}
		if p.Port() != 0 && p.Match(p.Name(), p.Port()%65535+1) {
			t.Fatalf("%q covers another port", s)
		}
	})
}

// checkMessage: a message is one line of printable text, and a correction in it is itself accepted.
func checkMessage(t *testing.T, err error) {
	t.Helper()
	if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f }) {
		t.Fatalf("control characters in %q", err)
	}
	if e, ok := errors.AsType[*syntaxError](err); ok && e.use != "" {
		_, cidrErr := ParseCIDR(e.use)
		_, patternErr := ParsePattern(e.use)
		if cidrErr != nil && patternErr != nil {
			t.Fatalf("%v: the correction is refused as well", err)
		}
	}
}

func TestIsPublic(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"example.com": true, "a.b.example.co.uk": true, "evil.example.net": true, "x.github.io": true, "foo.ck": true, "co.uk": true,
		"xn--bcher-kva.example.com": true, "x.xn--p1ai": true, "host.dev": true,

		"localhost": false, "a.localhost": false, "localhost.localdomain": false, "router": false, "com": false, "printer.local": false,
		"api.internal": false, "x.home.arpa": false, "4.3.2.1.in-addr.arpa": false, "x.test": false, "x.example": false, "x.invalid": false,
		"x.onion": false, "x.alt": false, "x.lan": false, "x.home": false, "x.corp": false, "svc.cluster.local": false, "x.intranet": false,
	} {
		n, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.IsPublic(); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
	if (Name{}).IsPublic() || (Name{}).IsLoopback() || (Name{}).IsWithin(Name{}) {
		t.Error("the zero name is something")
	}
}
