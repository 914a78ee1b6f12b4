package exchange_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/policy/match"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// TestAttackSecretOnAnotherPort: a server keeps the secrets that it is sent, and shows them on other ports of its name: in the
// clear, under a rule that does not scrub, and where requests are only judged. Other names are shown what they hold.
func TestAttackSecretOnAnotherPort(t *testing.T) {
	t.Parallel()
	const literal, sourced = "literal-secret-of-443", "sourced-secret-of-443"
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) {
		c.Secrets = proxytest.Sources{"s": func(context.Context) (string, error) { return sourced, nil }}
	})
	var sent atomic.Pointer[string]
	sent.Store(new(string))
	show := func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("X-Key"); key != "" {
			sent.Store(&key)
		}
		w.Header().Set("X-Kept", *sent.Load())
		fmt.Fprintf(w, "kept %s %s.", *sent.Load(), literal)
	}
	_, keyed := l.HTTPSServer(false, show)
	_, ruled := l.HTTPSServer(false, show)
	_, judged := l.HTTPSServer(true, show)
	_, plain := l.HTTPServer(show)
	spec := proxytest.AllowAll
	spec.Rules = []match.RequestRule{{Hosts: []string{proxytest.HostPort(judged)}, Methods: []string{"PURGE"}, Action: "deny"}}
	l.Rules(spec, fmt.Sprintf(`{%q: {"headers": {"X-Key": {"secret": "s"}, "X-Other": %q}, "scrub": true},
		%q: {"headers": {"X-Plain": "not a secret"}}}`, proxytest.HostPort(keyed), literal, proxytest.HostPort(ruled)))
	masked := func(what, text string) {
		t.Helper()
		if strings.Contains(text, "secret") || !strings.HasPrefix(text, "kept ") {
			t.Errorf("%s: the box reads %q", what, text)
		}
	}
	_, text := proxytest.Get(t, l.HTTPClient(plain, false), "http://"+proxytest.HostPort(plain)+"/", nil)
	masked("in the clear, before it was sent", text)
	_, text = proxytest.Get(t, l.HTTPClient(keyed, false), "https://"+proxytest.HostPort(keyed)+"/", nil)
	masked("on its own port", text)
	if *sent.Load() != sourced {
		t.Fatalf("the server was sent %q", *sent.Load())
	}
	for what, c := range map[string]struct {
		port uint16
		h2   bool
		url  string
	}{"in the clear": {plain, false, "http://"}, "under a rule": {ruled, false, "https://"}, "where requests are judged": {judged, true, "https://"}} {
		resp, text := proxytest.Get(t, l.HTTPClient(c.port, c.h2), c.url+proxytest.HostPort(c.port)+"/", nil)
		masked(what, text)
		if kept := resp.Header.Get("X-Kept"); kept != strings.Repeat("*", len(sourced)) {
			t.Errorf("%s: the field is %q", what, kept)
		}
	}
	_, text = proxytest.Get(t, l.HTTPClient(plain, false), fmt.Sprintf("http://other.example.com:%d/", plain), nil)
	if text != "kept "+sourced+" "+literal+"." {
		t.Errorf("another name: the box reads %q", text)
	}
}
