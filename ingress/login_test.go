package ingress

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// connCount counts connections to an application.
type connCount struct{ made, open atomic.Int32 }

// connectionLogin is an application that authenticates connections, as with NTLM: after a login of three messages, every
// request on the connection acts for the user without a credential.
func connectionLogin(t *testing.T, conns *connCount) *httptest.Server {
	t.Helper()
	type key struct{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := r.Context().Value(key{}).(*atomic.Pointer[string])
		switch message := strings.TrimPrefix(r.Header.Get("Authorization"), "NTLM "); {
		case strings.HasPrefix(message, "1"):
			w.Header().Set("WWW-Authenticate", "NTLM 2")
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasPrefix(message, "3"):
			name := message[1:]
			user.Store(&name)
			_, _ = io.WriteString(w, name)
		case user.Load() == nil:
			w.Header().Set("WWW-Authenticate", "NTLM")
			w.WriteHeader(http.StatusUnauthorized)
		default:
			if r.URL.Path == "/last" {
				w.Header().Set("Connection", "close")
			}
			_, _ = io.WriteString(w, *user.Load())
		}
	}))
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		conns.made.Add(1)
		return context.WithValue(ctx, key{}, &atomic.Pointer[string]{})
	}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			conns.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			conns.open.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// askAs makes a request as a user, and returns the status and the body of the response.
func askAs(t *testing.T, c *http.Client, url, authorization string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// TestAttackLoginOfAnotherVisitor: if an application authenticates connections, no visitor's request reaches it over a
// connection of another visitor.
func TestAttackLoginOfAnotherVisitor(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	var conns connCount
	f.expose("one", connectionLogin(t, &conns), Auth{Open: true})
	url := "https://one" + domain + "/"
	var all sync.WaitGroup
	for i := range 30 {
		client, user := f.client(t, false), fmt.Sprint("user", i)
		all.Go(func() {
			for _, step := range []string{"", "NTLM 1" + user, "NTLM 3" + user, "", "", ""} {
				status, body, err := askAs(t, client, url, step)
				if err != nil || status == 200 && body != user {
					t.Errorf("%s is answered %d as %q: %v", user, status, body, err)
				}
			}
			if status, body, err := askAs(t, client, url, ""); err != nil || status != 200 || body != user {
				t.Errorf("%s, who is logged in, is answered %d as %q: %v", user, status, body, err)
			}
		})
	}
	all.Wait()
	if n := conns.made.Load(); n != 30 {
		t.Errorf("30 visitors have %d connections", n)
	}
	for range 3 {
		if status, body, err := askAs(t, f.client(t, false), url, ""); err != nil || status != 401 {
			t.Errorf("who has not logged in is answered %d as %q: %v", status, body, err)
		}
		if status, body, err := askAs(t, f.client(t, true), url, ""); err != nil || status != 401 {
			t.Errorf("who has not logged in is answered %d as %q over HTTP/2: %v", status, body, err)
		}
	}
	if _, _, err := askAs(t, f.client(t, true), url, "NTLM 1x"); err == nil || !strings.Contains(err.Error(), "HTTP_1_1_REQUIRED") {
		t.Errorf("a login over HTTP/2: %v", err)
	}
}

// TestVisitorsLoginEndsWithItsConnection: both connections of a logged-in visitor end together.
func TestVisitorsLoginEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	var conns connCount
	server := connectionLogin(t, &conns)
	f.expose("one", server, Auth{Open: true})
	url := "https://one" + domain + "/"
	client := f.client(t, false)
	login := func() {
		for _, step := range []string{"NTLM 1ann", "NTLM 3ann"} {
			if _, _, err := askAs(t, client, url, step); err != nil {
				t.Fatal(err)
			}
		}
	}
	login()
	if status, _, err := askAs(t, client, url+"last", ""); err != nil || status != 200 {
		t.Fatalf("the last answer is %d: %v", status, err)
	}
	if status, body, err := askAs(t, client, url, ""); err != nil || status != 401 {
		t.Errorf("after the end of the connection she is answered %d as %q: %v", status, body, err)
	}
	login()
	server.CloseClientConnections()
	if status, body, err := askAs(t, client, url, ""); err != nil || status != 401 {
		t.Errorf("after the connection was closed she is answered %d as %q: %v", status, body, err)
	}
}

// TestAttackVisitorsHoldLogins: bound connections to a box that wait for their visitors count like running requests, so one
// network gets a quarter at most.
func TestAttackVisitorsHoldLogins(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Requests = 16 })
	var conns connCount
	f.expose("one", connectionLogin(t, &conns), Auth{Open: true})
	url := "https://one" + domain + "/"
	held := make([]*http.Client, 20)
	for i := range held {
		held[i] = f.client(t, false)
		_, _, _ = askAs(t, held[i], url, "NTLM 1x") // or is refused
	}
	until := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d connections to the box, %+v", what, conns.open.Load(), f.Uses()["url_requests"])
			}
		}
	}
	until("one network has a quarter", func() bool { return conns.open.Load() == 4 && f.Uses()["url_requests"].Taken == 4 })
	other := f.from(t, "127.0.0.2")
	other.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	for _, step := range []string{"NTLM 1ann", "NTLM 3ann", "", ""} {
		status, body, err := askAs(t, other, url, step)
		if err != nil || status == 200 && body != "ann" || status != 200 && step != "NTLM 1ann" {
			t.Errorf("another visitor is answered %d as %q: %v", status, body, err)
		}
	}
	for _, c := range held {
		c.CloseIdleConnections()
	}
	until("one visitor is left", func() bool { return conns.open.Load() == 1 && f.Uses()["url_requests"].Taken == 1 })
}
