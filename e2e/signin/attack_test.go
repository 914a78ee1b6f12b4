package signin

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// TestAttackDashboard: other sites, names that are pointed here, frames, foreign cookies and tokens of others get nothing from the
// dashboard of a real gateway, and change nothing.
func TestAttackDashboard(t *testing.T) {
	t.Parallel()
	g := newGate(t, nil)
	g.Create(map[string]any{"name": "canary-box", "network_policy": harness.Custom("api.example.com")})
	v, other := g.visitor(t), g.visitor(t)
	if v.signIn(g.operatorKey(t)); !v.isIn() {
		t.Fatal("not signed in")
	}
	other.signIn(g.newKey(t, "reader", api.RoleReader))
	_, page := other.send("GET", origin+"/ui/", nil)
	token := tokenField.FindStringSubmatch(page)
	if token == nil {
		t.Fatal(page)
	}
	set := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				r.Header.Set(pairs[i], pairs[i+1])
			}
		}
	}
	for name, c := range map[string]struct {
		method, path string
		form         url.Values
		edit         func(*http.Request)
		want         int
	}{
		"cross-site post":         {"POST", "/ui/sign-out", url.Values{"token": token[1:]}, set("Sec-Fetch-Site", "cross-site"), 403},
		"foreign origin":          {"POST", "/ui/sign-out", url.Values{"token": token[1:]}, from("https://evil.example"), 403},
		"neither":                 {"POST", "/ui/sign-out", url.Values{}, set(), 403},
		"the token of another":    {"POST", "/ui/sign-out", url.Values{"token": token[1:]}, set(), 403},
		"read by a script":        {"GET", "/ui/", nil, set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"), 403},
		"framed":                  {"GET", "/ui/", nil, set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"), 403},
		"a name pointed here":     {"GET", "/ui/", nil, func(r *http.Request) { r.Host = "evil.example:8600" }, 421},
		"the session at the API":  {"GET", "/v2/box", nil, set(), 401},
		"a caller in the request": {"GET", "/v2/box", nil, set("X-Boxgate-Caller", "operator", "Remote-User", "operator", "Cookie", "__Host-boxgate=operator"), 401},
	} {
		resp, page := v.send(c.method, origin+c.path, c.form, c.edit)
		if resp.StatusCode != c.want || strings.Contains(page, "canary-box") {
			t.Errorf("%s: %s %s", name, resp.Status, page)
		}
	}
	if !v.isIn() {
		t.Error("another has signed the person out")
	}
	resp, _ := v.send("GET", origin+"/ui/", nil)
	if csp := resp.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "frame-ancestors 'none'") || !strings.Contains(csp, "default-src 'none'") {
		t.Errorf("%q", csp)
	}
}

// TestAttackFloodOfSignIns: strangers who guess, and a key that signs in again and again, keep neither the operator out nor end
// sessions of others.
func TestAttackFloodOfSignIns(t *testing.T) {
	t.Parallel()
	g := newGate(t, nil)
	operator := g.visitor(t)
	if operator.signIn(g.operatorKey(t)); !operator.isIn() {
		t.Fatal("not signed in")
	}
	reader := g.newKey(t, "reader", api.RoleReader)
	var floods sync.WaitGroup
	for range 8 {
		floods.Go(func() {
			for i := range 25 {
				v := g.visitor(t)
				if i%2 == 0 {
					v.signIn("guess")
				} else if resp, page := v.signIn(reader); resp.StatusCode != http.StatusOK {
					t.Errorf("%s %s", resp.Status, page)
				}
			}
		})
	}
	late := g.visitor(t)
	if resp, page := late.signIn(g.operatorKey(t)); resp.StatusCode != http.StatusOK {
		t.Errorf("the operator during the flood: %s %s", resp.Status, page)
	}
	floods.Wait()
	if !operator.isIn() || !late.isIn() {
		t.Error("a flood of sign-ins has ended a session of the operator")
	}
	harness.Contains(t, g.trail(t), "refused||||dashboard, 127.0.0.1|POST /ui/sign-in|Unauthorized")
}

// TestDashboardNeedsTLSBeyondLoopback: over plain HTTP the dashboard takes no key at an address that others can reach, and says what
// to do. The API and the dashboard on loopback work.
func TestDashboardNeedsTLSBeyondLoopback(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(_ *gate, c *config.Config) { c.Admin.TLS = config.AdminTLS{} })
	outside, _ := g.Net.GatewayAddrs()
	get := func(to netip.Addr, path, key string) (int, string) {
		address := net.JoinHostPort(to.String(), "8600")
		c, err := g.Net.Gateway().DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		text, _ := harness.SendAndReadAll(c, "GET "+path+" HTTP/1.1\r\nHost: "+address+"\r\nConnection: close\r\nX-Box-Api-Key: "+key+"\r\n\r\n")
		var status int
		if len(text) > 12 {
			status = int(text[9]-'0')*100 + int(text[10]-'0')*10 + int(text[11]-'0')
		}
		return status, text
	}
	if status, text := get(outside, "/ui/sign-in", ""); status != http.StatusForbidden || !strings.Contains(text, "admin.tls") || strings.Contains(text, "password") {
		t.Errorf("%s", text)
	}
	if status, text := get(outside, "/v2/box", g.operatorKey(t)); status != http.StatusOK {
		t.Errorf("the API: %s", text)
	}
	if status, text := get(netip.MustParseAddr("127.0.0.1"), "/ui/sign-in", ""); status != http.StatusOK || !strings.Contains(text, "password") {
		t.Errorf("on loopback: %s", text)
	}
	out, _ := g.GatewayCommand("check")
	harness.Contains(t, out, "admin.tls")
}
