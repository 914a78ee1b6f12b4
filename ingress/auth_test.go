package ingress

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

func TestCredentials(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	bearer, basic := digest(BearerDigest("tok-1")), digest(BasicDigest("user", "p:w"))
	f.expose("none", box.Server, Auth{Open: true})
	f.expose("bearer", box.Server, Auth{Bearer: bearer})
	f.expose("basic", box.Server, Auth{Basic: basic})
	f.expose("both", box.Server, Auth{Bearer: bearer, Basic: basic})
	f.expose("openish", box.Server, Auth{Open: true, Bearer: bearer}) // with a credential, Open has no effect
	f.expose("zero", box.Server, Auth{})
	withBasic := func(user, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, password) }
	}
	with := func(values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header["Authorization"] = values }
	}
	tests := []struct {
		name, host, query string
		edit              func(*http.Request)
		status            int
	}{
		{"open", "none", "", nil, 200},
		{"right bearer", "bearer", "", with("Bearer tok-1"), 200},
		{"scheme in lower case", "bearer", "", with("bearer tok-1"), 200},
		{"no bearer", "bearer", "", nil, 401},
		{"empty bearer", "bearer", "", with("Bearer "), 401},
		{"wrong bearer", "bearer", "", with("Bearer tok-2"), 401},
		{"longer bearer", "bearer", "", with("Bearer tok-11"), 401},
		{"token without scheme", "bearer", "", with("tok-1"), 401},
		{"right and wrong", "bearer", "", with("Bearer tok-2", "Bearer tok-1"), 401},
		{"token in the query", "bearer", "?access_token=tok-1&token=tok-1", nil, 401},
		{"basic where bearer is asked", "bearer", "", withBasic("user", "p:w"), 401},
		{"the token as password", "bearer", "", withBasic("", "tok-1"), 401},
		{"right basic", "basic", "", withBasic("user", "p:w"), 200},
		{"wrong password", "basic", "", withBasic("user", "p"), 401},
		{"wrong user", "basic", "", withBasic("usr", "p:w"), 401},
		{"broken basic", "basic", "", with("Basic !!!"), 401},
		{"bearer where basic is asked", "basic", "", with("Bearer tok-1"), 401},
		{"both, by bearer", "both", "", with("Bearer tok-1"), 200},
		{"both, by basic", "both", "", withBasic("user", "p:w"), 200},
		{"both, neither", "both", "", nil, 401},
		{"open with a bearer", "openish", "", nil, 401},
		{"zero value", "zero", "", nil, 401},
		{"zero value with something", "zero", "", with("Bearer "), 401},
	}
	client := f.client(t, false)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, woken := box.count(), f.woken.Load()
			resp, body := get(t, client, "https://"+tt.host+domain+"/"+tt.query, tt.edit)
			if resp.StatusCode != tt.status {
				t.Fatalf("status %d, want %d: %s", resp.StatusCode, tt.status, body)
			}
			if tt.status == 200 {
				return
			}
			if box.count() != before || f.woken.Load() != woken {
				t.Error("an unauthenticated request reached or woke the box")
			}
			if resp.Header.Get("Www-Authenticate") == "" || resp.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("headers of the refusal: %v", resp.Header)
			}
		})
	}
	e := f.event(t, reason(name.ReasonURLAuth))
	if e.Verdict != policy.Deny || e.Status != 401 || e.Action != audit.ActionRefuse || e.Stage != policy.StageURL || e.Box != "box1" {
		t.Errorf("event of a refusal: %+v", e)
	}
}

// A credential is valid for its own URL only, not for another port of the box or another box.
func TestCredentialOfAnotherURL(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	for _, name := range []string{"one-80", "one-81", "two-80"} {
		f.expose(name, box.Server, Auth{Bearer: digest(BearerDigest("token of " + name)), Basic: digest(BasicDigest("box", name))})
	}
	client := f.client(t, false)
	for _, other := range []string{"one-81", "two-80"} {
		for _, edit := range []func(*http.Request){
			func(r *http.Request) { r.Header.Set("Authorization", "Bearer token of "+other) },
			func(r *http.Request) { r.SetBasicAuth("box", other) },
		} {
			if resp, _ := get(t, client, "https://one-80"+domain+"/", edit); resp.StatusCode != 401 || box.count() != 0 {
				t.Errorf("the credential of %s opens one-80: %s", other, resp.Status)
			}
		}
	}
}

func TestCredentialsNeverReachTheBox(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("bearer", box.Server, Auth{Bearer: digest(BearerDigest("tok-1"))})
	f.expose("none", box.Server, Auth{Open: true})
	edit := func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer tok-1")
		r.Header.Set("X-Box-Api-Key", "admin-key")
		r.Header["X_Box_Api_Key"] = []string{"admin-key"}
		r.Header.Set("Proxy-Authorization", "Basic proxy-key")
		r.Header.Add("Cookie", "a=1; __Host-boxgate-session=cookie-key; b=2")
	}
	for _, h2 := range []bool{false, true} {
		client := f.client(t, h2)
		if resp, _ := get(t, client, "https://bearer"+domain+"/", edit); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
		got := box.last(t)
		for _, secret := range []string{"tok-1", "admin-key", "proxy-key", "cookie-key", "Authorization"} {
			if strings.Contains(dump(got), secret) {
				t.Errorf("%q reached the box:\n%s", secret, dump(got))
			}
		}
		if c := got.Header.Get("Cookie"); c != "a=1; b=2" {
			t.Errorf("the box's own cookies arrive as %q", c)
		}
		// If the gateway needs no credential, Authorization passes to the application.
		if resp, _ := get(t, client, "https://none"+domain+"/", edit); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
		if a := box.last(t).Header.Get("Authorization"); a != "Bearer tok-1" {
			t.Errorf("the application's Authorization arrives as %q", a)
		}
	}
}

func TestOddHosts(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	tests := []struct {
		name, request string
		status        int
	}{
		{"known", "GET / HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", 200},
		{"upper case, port and dot", "GET / HTTP/1.1\r\nHost: ONE.Preview.Test.:8443\r\n\r\n", 200},
		{"unknown", "GET / HTTP/1.1\r\nHost: two.preview.test\r\n\r\n", 404},
		{"the bare domain", "GET / HTTP/1.1\r\nHost: preview.test\r\n\r\n", 404},
		{"longer", "GET / HTTP/1.1\r\nHost: one.preview.test.example.com\r\n\r\n", 404},
		{"IPv4", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 421},
		{"IPv4 and port", "GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n", 421},
		{"IPv6", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 421},
		{"empty", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
		{"absolute form, other authority", "GET http://one.preview.test/ HTTP/1.1\r\nHost: two.preview.test\r\n\r\n", 421},
		{"absolute form", "GET http://one.preview.test/ HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", 421},
		{"CONNECT", "CONNECT one.preview.test:80 HTTP/1.1\r\nHost: one.preview.test:80\r\n\r\n", 421},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", 421},
		{"two hosts", "GET / HTTP/1.1\r\nHost: one.preview.test\r\nHost: two.preview.test\r\n\r\n", 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := box.count()
			resp := f.raw(t, tt.request)
			if resp.StatusCode != tt.status {
				t.Fatalf("status %d, want %d", resp.StatusCode, tt.status)
			}
			if tt.status != 200 && box.count() != before {
				t.Error("the request reached a box")
			}
		})
	}
	if e := f.event(t, reason(name.ReasonURLUnknown)); e.Verdict != policy.Deny || e.Name == "" {
		t.Errorf("event of an unknown URL: %+v", e)
	}
}

// A connection made for one URL is not used for another, over either protocol.
func TestHostIsNotTheServerName(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	f.expose("two", box.Server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		resp, _ := get(t, f.client(t, h2), "https://one"+domain+"/", func(r *http.Request) { r.Host = "two" + domain })
		if resp.StatusCode != http.StatusMisdirectedRequest || box.count() != 0 {
			t.Errorf("h2 %v: status %d, %d requests in the box", h2, resp.StatusCode, box.count())
		}
	}
}

func TestBoxDoesNotAnswer(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("down", box.Server, Auth{Open: true})
	box.Close()
	resp, body := get(t, f.client(t, false), "https://down"+domain+"/", nil)
	if resp.StatusCode != 502 || resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	if addr := box.Listener.Addr().String(); strings.Contains(body, addr) || strings.Contains(body, "refused") {
		t.Errorf("the answer tells about the inside: %s", body)
	}
	e := f.event(t, reason(name.ReasonURLUnavailable))
	if e.Verdict != policy.Deny || e.Status != 502 || e.Error == "" || e.Addr != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("event: %+v", e)
	}
}
