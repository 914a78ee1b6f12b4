package ingress

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// FuzzHost: whatever Host a client sends, a name that is looked up is lower case, has no port, and is not an address.
func FuzzHost(f *testing.F) {
	for _, h := range []string{"a.preview.test", "A.Preview.Test.:443", "127.0.0.1", "[::1]:80", "::1", "a:b:c", ".", "%00", "0x7f.1:80", "[fe80::1%25eth0]"} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, host string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		q := ofRequest(r)
		name, ok := hostOf(&q)
		if !ok {
			return
		}
		if name == "" || name != strings.ToLower(name) {
			t.Errorf("%q is looked up as %q", host, name)
		}
		if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
			t.Errorf("%q is looked up as the address %q", host, name)
		}
	})
}

// FuzzCookies: however a Cookie header is written, no cookie of the gateway reaches the box, and none of the box is
// lost, as net/http reads them.
func FuzzCookies(f *testing.F) {
	for _, c := range []string{"a=1; __Host-boxgate-s=x; b=2", "__Host-boxgate=x", ";;a=1;", "a=\"__Host-boxgate\"", " __Host-boxgate-s = x ;a=2", "a=1;__Host-boxgate;b=2"} {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, cookie string) {
		before := &http.Request{Header: http.Header{"Cookie": {cookie}}}
		after := &http.Request{Header: http.Header{"Cookie": {cookie}}}
		stripCookies(after.Header)
		var want []string
		for _, c := range before.Cookies() {
			if !strings.HasPrefix(c.Name, cookiePrefix) {
				want = append(want, c.Name+"="+c.Value)
			}
		}
		var got []string
		for _, c := range after.Cookies() {
			if strings.HasPrefix(c.Name, cookiePrefix) {
				t.Fatalf("%q carries %q", cookie, c.Name)
			}
			got = append(got, c.Name+"="+c.Value)
		}
		if strings.Join(got, ";") != strings.Join(want, ";") {
			t.Errorf("%q: %q, want %q", cookie, got, want)
		}
	})
}

// FuzzSetCookie: no cookie that a box sets names a domain.
func FuzzSetCookie(f *testing.F) {
	for _, c := range []string{"a=1; Domain=x.test", "a=1;DOMAIN = .x.test; Path=/", "Domain=x", "a=1; domain", "a=1;\tdomain=x"} {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, cookie string) {
		resp := &http.Response{Header: http.Header{"Set-Cookie": {cookie}}}
		if err := modifyResponse(resp); err != nil {
			t.Fatal(err)
		}
		for _, c := range resp.Cookies() {
			if c.Domain != "" {
				t.Errorf("%q sets a cookie for %q", cookie, c.Domain)
			}
		}
	})
}
