package ingress

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"boxgate/relay"
	"boxgate/relay/h2/downstream"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// FuzzHost: whatever Host a client sends, the name that is looked up is in lower case, has no port, and is not an address.
func FuzzHost(f *testing.F) {
	for _, h := range []string{"a.preview.test", "A.Preview.Test.:443", "127.0.0.1", "[::1]:80", "::1", "a:b:c", ".", "%00", "0x7f.1:80", "[fe80::1%25eth0]"} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, host string) {
		name, ok := hostOf(&asked{method: http.MethodGet, host: host, path: "/", direct: true})
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

// FuzzCookies: whatever a Cookie header contains, no cookie of the gateway reaches the box, and the box gets all of its own,
// as net/http parses them.
func FuzzCookies(f *testing.F) {
	for _, c := range []string{"a=1; __Host-boxgate-s=x; b=2", "__Host-boxgate=x", ";;a=1;", "a=\"__Host-boxgate\"", " __Host-boxgate-s = x ;a=2", "a=1;__Host-boxgate;b=2"} {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, cookie string) {
		before := &http.Request{Header: http.Header{"Cookie": {cookie}}}
		after := &http.Request{Header: http.Header{"Cookie": {cookie}}}
		if kept := withoutOwnCookies(cookie); kept == "" {
			after.Header.Del("Cookie")
		} else {
			after.Header.Set("Cookie", kept)
		}
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
		if !ownHost(&cookie) {
			return
		}
		resp := &http.Response{Header: http.Header{"Set-Cookie": {cookie}}}
		for _, c := range resp.Cookies() {
			if c.Domain != "" {
				t.Errorf("%q sets a cookie for %q", cookie, c.Domain)
			}
		}
	})
}

// FuzzHTTP1Form: a request over HTTP/2 is either refused or becomes one request for the box, with the same method, target,
// host and fields.
func FuzzHTTP1Form(f *testing.F) {
	f.Add("GET", "/", "a.test", "x", "y", int64(0))
	f.Add("POST", "/?a b", "a.test", "cookie", "a=1", int64(-1))
	f.Add("GET /x HTTP/1.1\r\nHost: b\r\n\r\nGET", "/", "a.test", "transfer-encoding", "chunked", int64(5))
	f.Add("OPTIONS", "*", "a.test", "content-length", "5", int64(5))
	f.Fuzz(func(t *testing.T, method, path, host, name, value string, length int64) {
		if !httpguts.ValidHeaderFieldValue(value) || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(method) ||
			!httpguts.ValidHeaderFieldValue(path) || !httpguts.ValidHeaderFieldValue(host) || name != strings.ToLower(name) {
			return // downstream resets the stream
		}
		h := downstream.Head{Method: method, Path: path, Authority: host, Length: length, Fields: []hpack.HeaderField{{Name: name, Value: value}}}
		text, err := relay.AppendStreamHead(nil, &h)
		if err != nil {
			return
		}
		s := &stream{Stream: relay.Stream{In: &downstream.Stream{Head: h}}}
		s.g = &core{Config: Config{MaxHeaderBytes: 64 << 10}}
		if s.read(text) != nil {
			return
		}
		r := &s.Req
		target := path
		if method == http.MethodConnect {
			target = host
		}
		if string(r.Method) != method || string(r.Target) != target || string(r.Host) != host {
			t.Errorf("%q %q %q became %q", method, path, host, text)
		}
		if got := relay.Values(r.Fields, name); name != "host" && (len(got) == 0 || got[0] != strings.Trim(value, " \t")) {
			t.Errorf("%q: %q became %q", name, value, text)
		}
		if chunked := length < 0; r.Body.Chunked != chunked || !chunked && r.Body.Length != length {
			t.Errorf("a body of %d became %+v", length, r.Body)
		}
	})
}
