package ingress

import (
	"bufio"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"

	"boxgate/ingress/access"
	"boxgate/ingress/link"
)

// usual are the fields of a browser's request and of an application's own client.
var usual = []string{"accept", "accept-language", "user-agent", "cookie", "referer", "sec-ch-ua", "sec-ch-ua-mobile", "sec-ch-ua-platform",
	"sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "priority", "content-type", "origin", "x-csrf-token", "x-request-id", "x-api-key"}

// BenchmarkClaimed checks all fields of a request.
func BenchmarkClaimed(b *testing.B) {
	names := make([][]byte, 0, len(usual))
	for _, n := range usual {
		names = append(names, []byte(n))
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, n := range names {
			if claimed(n) {
				b.Fatalf("%s is removed", n)
			}
		}
	}
}

// The comparison does not allocate, whether a field is removed, kept or let through.
func TestFieldsAreJudgedWithoutAllocation(t *testing.T) {
	names := lowered([]string{"X-Auth-Token"})
	removed, kept, let := []byte("X_Forwarded.User"), []byte("x-request-id"), []byte("X-AUTH-Token")
	n := testing.AllocsPerRun(100, func() {
		if !claimed(removed) || lets(names, removed) || claimed(kept) || !claimed(let) || !lets(names, let) {
			t.Error("misjudged")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzClaimed compares the index of names with the lists.
func FuzzClaimed(f *testing.F) {
	for _, names := range [][]string{claimedNames, claimedBeginnings, ordinaryFields, usual} {
		for _, name := range names {
			f.Add(name)
			f.Add(strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + ".Y")
		}
	}
	f.Fuzz(func(t *testing.T, name string) {
		if !httpguts.ValidHeaderFieldName(name) {
			return
		}
		plain := strings.Map(func(r rune) rune {
			if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", r) {
				return r
			}
			return '-'
		}, strings.ToLower(name))
		want := slices.Contains(claimedNames, plain) || slices.ContainsFunc(claimedBeginnings, func(b string) bool { return strings.HasPrefix(plain, b) })
		if got := claimed([]byte(name)); got != want || claimed(name) != want {
			t.Errorf("%q, read as %q: %v, want %v", name, plain, got, want)
		}
	})
}

// If a request contains a credential in a spelling that the gateway does not read, and another credential lets it in, the
// first does not reach the box.
func TestCredentialsInOtherSpellings(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.guarded("one", box)
	for _, h2 := range []bool{false, true} {
		c := f.client(t, h2)
		good := signIn(t, c, "one")
		for _, query := range []string{
			"boxgate%5Ftoken=tok", "a=1;boxgate_token=tok", "boxgate_tok%65n=tok", "Boxgate_Token=tok", "+boxgate_token=tok", "boxgate_token%3Dtok", "boxgate_token[]=tok",
		} {
			resp, _ := get(t, c, "https://one"+domain+"/?"+query+"&b", func(r *http.Request) {
				r.Header.Set("Cookie", good)
				r.Header.Set("Referer", "https://one"+domain+"/?"+query)
				r.Header["Authorization"] = []string{"Bearer of-the-app", "bearer  tok", "Bearer of-the-app", "Basic Ym94OnBhc3M="}
			})
			got := box.last(t)
			if sent := got.RequestURI + got.Referer(); resp.StatusCode != 200 || strings.Contains(strings.ToLower(sent), "tok") || !strings.HasSuffix(got.RequestURI, "b") {
				t.Errorf("h2 %v, %s: %s, the box got %q", h2, query, resp.Status, sent)
			}
			if own := got.Header["Authorization"]; !slices.Equal(own, []string{"Bearer of-the-app", "Bearer of-the-app"}) {
				t.Errorf("h2 %v: the box got %q", h2, own)
			}
		}
	}
}

// A signed link is not valid for another method that a field names. Requests with other credentials may name any.
func TestMethodsOfALinkAreNotOverridden(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	target := f.guarded("one", box)
	key := access.Key{1}
	target.Access.Links = key
	f.set("one"+domain, target)
	signed := "boxgate_link=" + link.Sign(key, target.ID, link.Link{Expires: time.Now().Add(time.Hour), Prefix: "/files", Methods: []string{"GET"}})
	for _, h2 := range []bool{false, true} {
		c := f.client(t, h2)
		for _, name := range []string{"X-HTTP-Method-Override", "x-http-method", "X-Method-Override", "X_HTTP_Method_Override"} {
			override := func(r *http.Request) { r.Header[name] = []string{"DELETE"} }
			if resp, _ := get(t, c, "https://one"+domain+"/files?"+signed, override); resp.StatusCode != 200 || strings.Contains(dump(box.last(t)), "DELETE") {
				t.Errorf("h2 %v, %s: %s, the box got\n%s", h2, name, resp.Status, dump(box.last(t)))
			}
			get(t, c, "https://one"+domain+"/files", func(r *http.Request) {
				override(r)
				r.Header.Set("Authorization", "Bearer tok")
			})
			if !strings.Contains(dump(box.last(t)), "DELETE") {
				t.Errorf("h2 %v: %s of one with the token is lost", h2, name)
			}
		}
	}
}

// Searching a request for the gateway's parameters and fields does not allocate.
func TestCleanRequestsAreNotCopied(t *testing.T) {
	target := []byte("/a/b?c=d&e=%20f;g=boxgate_x&page=2&boxgate=1")
	name := []byte("x-http-method-overridden")
	n := testing.AllocsPerRun(100, func() {
		if got := withoutOwnParameters(target); &got[0] != &target[0] || changesMethod(name) {
			t.Error("changed")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A page of another site can neither open a WebSocket over HTTP/2 with the password that the browser keeps, nor send a request
// that changes something.
func TestAnotherSiteOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	basic := BasicDigest("box", "password")
	f.expose("one", box.Server, Auth{Basic: &basic})
	password := []string{"authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("box:password"))}
	v := f.frames(t, "one")
	for name, c := range map[string]struct {
		fields []string
		want   string
	}{
		"a WebSocket":              {append([]string{":protocol", "websocket"}, to("CONNECT", "one", "/", "origin", "https://evil.example")...), "403"},
		"of a sandboxed page":      {append([]string{":protocol", "websocket"}, to("CONNECT", "one", "/", "origin", "null")...), "403"},
		"one that names the site":  {append([]string{":protocol", "websocket"}, to("CONNECT", "one", "/", "sec-fetch-site", "same-site")...), "403"},
		"a form":                   {to("POST", "one", "/", "origin", "https://two"+domain), "403"},
		"a form of its own":        {to("POST", "one", "/", "origin", "https://one"+domain), "200"},
		"without the password":     {to("POST", "one", "/", "origin", "https://one"+domain), "401"},
		"its password in the path": {to("GET", "one", "/?authorization=Basic"), "401"},
	} {
		fields := append(c.fields[:len(c.fields):len(c.fields)], password...)
		if c.want == "401" {
			fields = c.fields
		}
		answer := v.answer(v.ask(true, fields...))
		if got := answer.status(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if n := box.count(); n != 1 {
		t.Errorf("%d requests reached the box", n)
	}
}

// year is the MaxAge of the tests' gateways.
const year = "max-age=31536000; includeSubDomains"

func sendsHSTS(c *Config) { c.HSTS = HSTS{MaxAge: 8760 * time.Hour, IncludeSubdomains: true} }

// Every response over HTTPS contains only the gateway's Strict-Transport-Security; responses over plain HTTP contain no such
// field.
func TestHSTSOnEveryResponse(t *testing.T) {
	t.Parallel()
	f := start(t, sendsHSTS)
	own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Strict-Transport-Security", "max-age=0; includeSubDomains")
		w.Header().Add("strict-transport-security", "max-age=9")
	}))
	t.Cleanup(own.Close)
	f.expose("open", own, Auth{Open: true})
	f.expose("closed", own, Auth{Bearer: digest(BearerDigest("tok"))})
	f.script(t, "gone", func(net.Conn, *bufio.Reader) {})
	for host, status := range map[string]int{"open": 200, "closed": 401, "none": 404, "gone": 502} {
		for _, h2 := range []bool{false, true} {
			resp, _ := get(t, f.client(t, h2), "https://"+host+domain+"/", nil)
			if got := resp.Header["Strict-Transport-Security"]; resp.StatusCode != status || !slices.Equal(got, []string{year}) {
				t.Errorf("%s, h2 %v: %s, %q", host, h2, resp.Status, got)
			}
		}
		resp := f.raw(t, "GET / HTTP/1.1\r\nHost: "+host+domain+"\r\n\r\n")
		if got := resp.Header["Strict-Transport-Security"]; resp.StatusCode != status || got != nil {
			t.Errorf("%s, plain: %s, %q", host, resp.Status, got)
		}
	}
	c := f.connectTo(t, "open"+domain)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost : open"+domain+"\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header["Strict-Transport-Security"]; resp.StatusCode != 400 || !slices.Equal(got, []string{year}) {
		t.Errorf("a malformed request: %s, %q", resp.Status, got)
	}
}

// A WebSocket's handshake contains it too.
func TestHSTSOnWebSockets(t *testing.T) {
	t.Parallel()
	f := start(t, sendsHSTS)
	f.expose("one", echoServer(t), Auth{Bearer: digest(BearerDigest("tok"))})
	c, resp, err := dialWebSocket(t, f, "one", "tok")
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if got := resp.Header["Strict-Transport-Security"]; !slices.Equal(got, []string{year}) {
		t.Errorf("%q", got)
	}
}

// An application's own Strict-Transport-Security passes in no part of a response and in no spelling, even if the gateway sends
// none.
func TestHSTSIsTheGateways(t *testing.T) {
	t.Parallel()
	own := "Strict-Transport-Security: max-age=0\r\nSTRICT-TRANSPORT-SECURITY: max-age=9; includeSubDomains; preload\r\n"
	text := "HTTP/1.1 103 Early Hints\r\n" + own + "\r\nHTTP/1.1 200 OK\r\n" + own +
		"Trailer: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + own + "\r\n"
	for name, change := range map[string]func(*Config){"": nil, year: sendsHSTS} {
		f := start(t, change)
		f.script(t, "one", answersAll(text))
		v := f.frames(t, "one")
		r := v.answer(v.ask(true, to("GET", "one", "/")...))
		if len(r.heads) != 2 { // trailers without remaining fields are not sent
			t.Fatalf("%+v", r)
		}
		var got []string
		for i, head := range r.heads {
			for _, h := range head.Fields {
				if h.Name == hstsName {
					got = append(got, h.Value)
					if i != 1 {
						t.Errorf("part %d: %s", i, h.Value)
					}
				}
			}
		}
		if strings.Join(got, "|") != name {
			t.Errorf("HTTP/2: %q, want %q", got, name)
		}
		c := f.connectTo(t, "one"+domain)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: one"+domain+"\r\nConnection: close\r\n\r\n")
		all, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		sent := strings.ToLower(string(all))
		if want := min(len(name), 1); strings.Count(sent, hstsName) != want || name != "" && !strings.Contains(string(all), ": "+name+"\r\n") {
			t.Errorf("HTTP/1.1: %s", all)
		}
	}
}

func TestHSTSValue(t *testing.T) {
	t.Parallel()
	for want, h := range map[string]HSTS{
		"":                             {},
		"max-age=60":                   {MaxAge: time.Minute},
		"max-age=1; includeSubDomains": {MaxAge: 1900 * time.Millisecond, IncludeSubdomains: true},
	} {
		if got := h.value(); got != want {
			t.Errorf("%+v: %q, want %q", h, got, want)
		}
	}
	if got := (HSTS{IncludeSubdomains: true}).value(); got != "" {
		t.Errorf("without a time: %q", got)
	}
}
