package attack

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy/name"
)

// signedIn returns the Cookie line of a signed-in browser.
func (v *visited) signedIn() string {
	v.T.Helper()
	form := "token=" + url.QueryEscape(v.Token)
	head, _ := v.send("POST", "/.boxgate/sign-in", form, "Origin: https://"+v.host)
	cookie := head.Header.Get("Set-Cookie")
	value, _, _ := strings.Cut(cookie, ";")
	if head.StatusCode != 303 || !strings.HasPrefix(cookie, "__Host-boxgate-session=") || !strings.Contains(cookie, "; Secure; HttpOnly; SameSite=Lax") {
		v.T.Fatal(head.Status, cookie)
	}
	return "Cookie: " + value
}

// TestAttackTokenInTheQuery: a client that only has an address with the token, from a log or a history, gets neither a
// WebSocket nor an answer to a program's request. No request reaches the box, and the log does not contain the token.
func TestAttackTokenInTheQuery(t *testing.T) {
	t.Parallel()
	v := socketURL(harness.Shared(t), map[string]any{"bearer_token": true})
	for _, query := range []string{"boxgate_token=", "token=", "access_token=", "boxgate_link="} {
		path := "/x?" + query + v.Token
		if status, _ := v.ask("GET", path, append([]string{"Accept: text/html", "Origin: https://" + v.host}, socketLines...)...); status != 401 {
			t.Errorf("a WebSocket at %s: %d", path, status)
		}
		if status, _ := v.ask("GET", path, "Accept: */*"); status != 401 {
			t.Errorf("%s: %d", path, status)
		}
	}
	if seen := v.takeSeen(); seen != "" {
		t.Errorf("the box saw %q", seen)
	}
	if e := v.Event(v.box, func(e audit.Event) bool { return e.Reason == name.ReasonURLAuth }); strings.Contains(e.Path, v.Token) {
		t.Errorf("decision %+v", e)
	}
}

// TestAttackSessionOfAnotherURL: a browser's session opens one URL. It does not work at another port or another box,
// with a bit changed, for pages of other sites, or after the URL was recreated, and it never reaches the box.
func TestAttackSessionOfAnotherURL(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	one, two := socketURL(w, map[string]any{"bearer_token": true}), socketURL(w, map[string]any{"bearer_token": true})
	cookie := one.signedIn()
	if status, _ := one.ask("GET", "/mine", cookie); status != 200 || one.takeSeen() != "GET /mine\n" {
		t.Fatalf("the session does not open its own URL: %d", status)
	}
	changed := []byte(cookie)
	changed[len(changed)-10] ^= 1
	refused := func(what string, v *visited, want int, lines ...string) {
		t.Helper()
		if status, _ := v.ask("GET", "/theirs", lines...); status != want || v.takeSeen() != "" {
			t.Errorf("%s: %d", what, status)
		}
	}
	refused("another box's URL", two, 401, cookie)
	refused("a bit changed", one, 401, string(changed))
	refused("a WebSocket of another box's page", one, 403, append([]string{cookie, "Origin: https://" + two.host}, socketLines...)...)
	refused("a WebSocket of a sandboxed page", one, 403, append([]string{cookie, "Origin: null"}, socketLines...)...)
	refused("a script of another box's page", one, 403, cookie, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script")
	if status, _ := one.ask("GET", "/ws", append([]string{cookie, "Origin: https://" + one.host}, socketLines...)...); status != 101 {
		t.Errorf("its own page opens no WebSocket: %d", status)
	}
	one.takeSeen()
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(one.box, "preview"), map[string]any{"port": 8000, "bearer_token": true}, nil); err != nil {
		t.Fatal(err)
	}
	refused("the URL created anew", one, 401, cookie)
}

// TestAttackSignedLinkUsedForMore: the holder of a link to some files tries other spellings, other methods, a
// WebSocket, another URL, and the link after the URL was recreated. Only signed requests reach the box, and without the
// signature.
func TestAttackSignedLinkUsedForMore(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	one, two := socketURL(w, map[string]any{"bearer_token": true}), socketURL(w, map[string]any{"bearer_token": true})
	out, code := w.GatewayCommand("url", "sign", one.box, "8000", "--path", "/files", "--expires-in", "1h", "--json")
	var made struct{ URL string }
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil {
		t.Fatal(code, out)
	}
	path, query, _ := strings.Cut(strings.TrimPrefix(made.URL, "https://"+one.host), "?")
	if status, _ := one.ask("GET", path+"/a?"+query+"&b=c"); status != 200 || one.takeSeen() != "GET /files/a?b=c\n" {
		t.Fatalf("%s does not open: %d", made.URL, status)
	}
	for name, c := range map[string]struct{ method, target string }{
		"the path above": {"GET", "/?" + query}, "a path that begins alike": {"GET", "/files2?" + query}, "dot segments": {"GET", "/files/../x?" + query},
		"encoded": {"GET", "/files/%2e%2e/x?" + query}, "with a slash": {"GET", "/files/..%2fx?" + query}, "with a backslash": {"GET", "/files/..%5cx?" + query},
		"twice encoded": {"GET", "/files/%252e%252e/x?" + query}, "with a parameter": {"GET", "/files/..;/x?" + query}, "empty segments": {"GET", "/files//x?" + query},
		"overlong": {"GET", "/files/%c0%ae%c0%ae/x?" + query}, "a POST": {"POST", "/files?" + query}, "a DELETE": {"DELETE", "/files?" + query},
	} {
		if status, _ := one.ask(c.method, c.target); status != 401 || one.takeSeen() != "" {
			t.Errorf("%s: %d", name, status)
		}
	}
	if status, _ := one.ask("GET", "/files?"+query, socketLines...); status != 401 {
		t.Errorf("a WebSocket: %d", status)
	}
	if status, _ := two.ask("GET", "/files?"+query); status != 401 || two.takeSeen() != "" {
		t.Errorf("another box's URL: %d", status)
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(one.box, "preview"), map[string]any{"port": 8000, "bearer_token": true}, nil); err != nil {
		t.Fatal(err)
	}
	if status, _ := one.ask("GET", "/files?"+query); status != 401 || one.takeSeen() != "" {
		t.Errorf("the URL created anew: %d", status)
	}
}
