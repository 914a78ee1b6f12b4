package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// browser is a client of the dashboard of a host. It keeps its own cookies: secure ones are not sent by Go's jar over plain
// HTTP, as browsers do on loopback.
type browser struct {
	h       *host
	client  *http.Client
	cookies map[string]string
}

var formToken = regexp.MustCompile(`name="token" value="([^"]+)"`)

// send opens a page, or with a form sends that.
func (b *browser) send(path string, form url.Values) (status int, page, location string) {
	b.h.T.Helper()
	ctx, cancel := context.WithTimeout(b.h.T.Context(), harness.Patience)
	defer cancel()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://127.0.0.1:8600"+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.h.T.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	resp, err := b.client.Do(r)
	if err != nil {
		b.h.T.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.h.T.Fatal(err)
	}
	for _, c := range resp.Cookies() {
		if b.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return resp.StatusCode, string(text), resp.Header.Get("Location")
}

// get opens a page.
func (b *browser) get(path string) (int, string) {
	status, page, _ := b.send(path, nil)
	return status, page
}

// watch opens a stream, and reports whether it shows a text that do causes.
func (b *browser) watch(path, want string, do func()) (seen bool) {
	b.h.T.Helper()
	ctx, cancel := context.WithTimeout(b.h.T.Context(), harness.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8600"+path, nil)
	if err != nil {
		b.h.T.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	resp, err := b.client.Do(r)
	if err != nil {
		b.h.T.Fatal(err)
	}
	defer resp.Body.Close()
	do()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if strings.Contains(lines.Text(), want) {
			return true
		}
	}
	return false
}

// signIn returns a browser on a host that has signed in with a key.
func (h *host) signIn(key string) *browser {
	h.T.Helper()
	b := &browser{h: h, cookies: map[string]string{}, client: &http.Client{
		Transport:     &http.Transport{DialContext: h.Net.Gateway().DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	_, page := b.get("/ui/sign-in")
	token := formToken.FindStringSubmatch(page)
	if token == nil {
		h.T.Fatal(page)
	}
	if status, page, to := b.send("/ui/sign-in", url.Values{"key": {key}, "token": {token[1]}}); status != http.StatusSeeOther || to != "/ui/" {
		h.T.Fatal(status, page)
	}
	return b
}

// TestDashboardOfAnotherHost: a session that began with a key of the fleet shows and changes boxes of other hosts, which check that key and
// record it with the address of the browser. One with a key of its host alone reaches the boxes of that host. When the key is revoked, both the
// session and its calls end.
func TestDashboardOfAnotherHost(t *testing.T) {
	t.Parallel()
	j, a, b, _ := three(t)
	box := j.make(b, "far")
	key := func(role string) (made madeKey) {
		t.Helper()
		if err := json.Unmarshal([]byte(j.must(a, 201, "POST", "/v2/api-keys", map[string]any{"name": role, "role": role})), &made); err != nil || !made.Fleet {
			t.Fatal(made, err)
		}
		return made
	}
	admin, reader := key("admin"), key("read-only")
	own := a.signIn(j.operator)
	if _, page := own.get("/ui/"); strings.Contains(page, box) || !strings.Contains(page, "These are the boxes of this host") {
		t.Errorf("with a key of the host alone: %s", page)
	}
	if status, page := own.get("/ui/boxes/" + box); status != http.StatusForbidden || !strings.Contains(page, "host "+b.id) {
		t.Errorf("a box elsewhere with a key of the host alone: %d %s", status, page)
	}
	ops := a.signIn(admin.Key)
	if _, page := ops.get("/ui/"); !strings.Contains(page, `href="/ui/boxes/`+box+`"`) || !strings.Contains(page, ">"+b.id+"<") {
		t.Errorf("the boxes: %s", page)
	}
	for _, path := range []string{"", "/policy", "/history", "/headers", "/urls", "/allow?host=www.example.com&port=443"} {
		if status, page := ops.get("/ui/boxes/" + box + path); status != http.StatusOK || !strings.Contains(page, "far") {
			t.Errorf("%s: %d %s", path, status, page)
		}
	}
	if seen := ops.watch("/ui/boxes/"+box+"/live", "denied.example.com", func() { b.Sh(box, "curl -sS -m 5 http://denied.example.com/") }); !seen {
		t.Error("the stream of decisions does not show one")
	}
	if status, _ := ops.get("/ui/urls"); status != http.StatusOK {
		t.Errorf("the URLs of all boxes: %d", status)
	}
	_, page := ops.get("/ui/boxes/" + box + "/urls")
	form := url.Values{"token": {formToken.FindStringSubmatch(page)[1]}, "port": {"3000"}, "protocol": {"auto"}, "bearer_token": {"on"}}
	if status, page, _ := ops.send("/ui/boxes/"+box+"/urls", form); status != http.StatusCreated && status != http.StatusOK || !strings.Contains(page, box+"-3000") {
		t.Errorf("a public URL: %d %s", status, page)
	}
	if trail := b.command(0, "", "audit", "--json"); !strings.Contains(trail, `"key_id":"`+admin.ID+`"`) || !strings.Contains(trail, "host "+a.id+", 127.0.0.1") {
		t.Errorf("the trail of the owner: %s", trail)
	}
	looking := a.signIn(reader.Key)
	if status, _ := looking.get("/ui/boxes/" + box); status != http.StatusOK {
		t.Errorf("a reader opens the box: %d", status)
	}
	_, page = looking.get("/ui/")
	form.Set("token", formToken.FindStringSubmatch(page)[1])
	form.Set("port", "3001")
	if status, page, _ := looking.send("/ui/boxes/"+box+"/urls", form); status != http.StatusForbidden {
		t.Errorf("a reader makes a public URL: %d %s", status, page)
	}
	looking.cookies["__Host-boxgate-key"] = ops.cookies["__Host-boxgate-key"]
	if status, page := looking.get("/ui/boxes/" + box); status != http.StatusForbidden {
		t.Errorf("with the sealed key of another session: %d %s", status, page)
	}
	j.must(b, 200, "DELETE", "/v2/api-keys/"+admin.ID, nil)
	if status, _, to := ops.send("/ui/boxes/"+box, nil); status != http.StatusSeeOther || !strings.HasPrefix(to, "/ui/sign-in") {
		t.Errorf("after the key was revoked on the other host: %d %s", status, to)
	}
}
