package ingress

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

func TestWakeFails(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.Boxes = &sleepers{wake: func(context.Context, policy.BoxID, uint16) error { return errors.New("no memory") }}
	})
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	resp, body := get(t, f.client(t, false), "https://one"+domain+"/", nil)
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "5" || strings.Contains(body, "memory") || box.count() != 0 {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestPanicEndsOneRequest(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.Dial = func(ctx context.Context, t Target) (net.Conn, error) {
			if t.Box == "bad" {
				panic("secret detail")
			}
			return new(net.Dialer).DialContext(ctx, "tcp", t.Addr.String())
		}
	})
	box := record(t)
	good := f.expose("good", box.Server, Auth{Open: true})
	good.Box = "bad"
	f.set("bad"+domain, good)
	if resp, err := f.client(t, false).Get("https://bad" + domain + "/"); err == nil {
		resp.Body.Close()
		t.Error("a request that panicked was answered")
	}
	if resp, _ := get(t, f.client(t, false), "https://good"+domain+"/", nil); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	if e := f.event(t, reason(name.ReasonInternal)); e.Verdict != policy.Deny {
		t.Errorf("event: %+v", e)
	}
}

func TestRedirect(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Bearer: digest(BearerDigest("tok"))})
	f.plain = f.listen(t, func(ln net.Listener) error {
		return f.ServeRedirect(ln, 8443, func(host, path string) (string, bool) {
			return "key", host == "one"+domain && path == "/.well-known/acme-challenge/x"
		})
	})
	tests := []struct {
		request, location string
		status            int
	}{
		{"GET /a?b=c HTTP/1.1\r\nHost: one.preview.test:80\r\n\r\n", "https://one.preview.test:8443/a?b=c", 308},
		{"GET /a?b=c&boxgate_token=tok HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", "https://one.preview.test:8443/a?b=c", 308},
		{"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "", 404},
		{"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "", 421},
		{"GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", "", 200},
		{"GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: two.preview.test\r\n\r\n", "", 404},
		{"GET /.well-known/acme-challenge/of-the-box HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", "", 404},
	}
	for _, tt := range tests {
		resp := f.raw(t, tt.request)
		if resp.StatusCode != tt.status || resp.Header.Get("Location") != tt.location {
			t.Errorf("%q: %s to %q", tt.request, resp.Status, resp.Header.Get("Location"))
		}
		if tt.status == 308 && resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%q may be cached: %v", tt.request, resp.Header)
		}
	}
	if box.count() != 0 {
		t.Error("plain HTTP reached the box")
	}
	f.event(t, func(e audit.Event) bool { return e.Status == 308 && e.Action == audit.ActionAnswer })
}

// Redirects count as requests to the URL, so that a stranger gets no more of them.
func TestRedirectsASecond(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.RequestRate = 1 })
	f.tallies.mu.Lock()
	f.tallies.refill = 1e-9 // no refill within the test
	f.tallies.mu.Unlock()
	f.expose("one", record(t).Server, Auth{Open: true})
	f.plain = f.listen(t, func(ln net.Listener) error { return f.ServeRedirect(ln, 443, nil) })
	for i, status := range []int{308, 308, 429, 429} {
		if resp := f.raw(t, "GET / HTTP/1.1\r\nHost: one.preview.test\r\n\r\n"); resp.StatusCode != status {
			t.Errorf("request %d: %s, want %d", i, resp.Status, status)
		}
	}
	f.event(t, reason(name.ReasonLimit))
}

func TestPlainOnlyOnLoopback(t *testing.T) {
	t.Parallel()
	g, err := New(Config{URLs: &untilBegun{}})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := listenAny()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := g.ServePlain(ln); err == nil {
		t.Error("plain HTTP was served beyond loopback")
	}
}

func TestHeadersTooLarge(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxHeaderBytes = 8 << 10 })
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	resp := f.raw(t, "GET / HTTP/1.1\r\nHost: one.preview.test\r\nX: "+strings.Repeat("a", 32<<10)+"\r\n\r\n")
	if resp.StatusCode != 431 || box.count() != 0 {
		t.Error(resp.Status)
	}
}

// curl must work over HTTP/2 and HTTP/1.1 with certificate verification, as many users have it.
func TestCurl(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal("this test needs curl: apt-get install curl")
	}
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Bearer: digest(BearerDigest("tok"))})
	bundle := f.bundle(t)
	_, port, _ := strings.Cut(f.https, ":")
	for flag, version := range map[string]string{"--http1.1": "1.1", "--http2": "2"} {
		url := "https://one" + domain + ":" + port + "/"
		args := []string{"-sS", "--max-time", "20", flag, "--cacert", bundle, "--resolve", "one" + domain + ":" + port + ":127.0.0.1",
			"-w", "|%{http_code}|%{http_version}", "-d", "world", url}
		out, err := exec.CommandContext(t.Context(), curl, append(args, "-H", "Authorization: Bearer tok")...).CombinedOutput()
		if want := "hello world|200|" + version; err != nil || string(out) != want {
			t.Errorf("curl %s: %q, want %q (%v)", flag, out, want, err)
		}
		out, err = exec.CommandContext(t.Context(), curl, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "|401|") {
			t.Errorf("curl %s without the token: %q (%v)", flag, out, err)
		}
	}
}
