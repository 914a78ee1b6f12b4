package session

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestAttackBodiesThatDoNotArrive: whoever announces a body and does not send it is disconnected, whatever reads the body.
func TestAttackBodiesThatDoNotArrive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.bodyTime = 50 * time.Millisecond
	b := f.browser()
	b.signIn("reader-key", "")
	srv := httptest.NewServer(f.handler)
	t.Cleanup(srv.Close)
	form := "Content-Type: application/x-www-form-urlencoded\r\n"
	session := "Cookie: " + Cookie + "=" + b.cookies[Cookie] + "\r\n"
	var clients sync.WaitGroup
	for what, request := range map[string]string{
		"a sign-in":            "POST /ui/sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" + form + "\r\n",
		"a sign-in, too long":  "POST /ui/sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n" + form + "\r\n" + strings.Repeat("a", maxSign+1),
		"a form of a stranger": "POST /ui/boxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" + form + "\r\n",
		"a form of a session":  "POST /ui/boxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" + session + form + "\r\n",
		"another type":         "POST /ui/boxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nContent-Type: text/plain\r\n" + session + "\r\n",
		"a page":               "GET /ui/boxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
		"a page of a session":  "GET /ui/boxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" + session + "\r\n5\r\nab",
		"a name pointed here":  "POST /ui/sign-in HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 100\r\n" + form + "\r\n",
	} {
		clients.Go(func() {
			c, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err = io.WriteString(c, request)
			answer, errRead := io.ReadAll(c)
			if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 ") || isTimeout(errRead) {
				t.Errorf("%s: %v, %v, %.60q", what, err, errRead, answer)
			}
		})
	}
	clients.Wait()
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the form of a stranger is read")
	return 0, io.EOF
}

// TestFormsOfStrangersAreNotRead: a form takes memory only of somebody who has signed in.
func TestFormsOfStrangersAreNotRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := httptest.NewRequest("POST", "/ui/boxes", unread{t})
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	if f.handler.ServeHTTP(w, r); w.Code != http.StatusForbidden {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestVisitsAreBounded: the sessions of a caller have a bounded number of pages and forms under way, and others are not affected.
func TestVisitsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second, other := f.browser(), f.browser(), f.browser()
	first.signIn("reader-key", "")
	second.signIn("reader-key", "")
	other.signIn("operator-key", "")
	began, hold := make(chan struct{}), make(chan struct{})
	f.handler = f.Protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ui/held" {
			began <- struct{}{}
			<-hold
		}
	}))
	var held sync.WaitGroup
	for i := range mostVisits - 2 {
		b := []*browser{first, second}[i%2]
		held.Go(func() { b.copy().send("GET", "/ui/held", nil) })
		<-began
	}
	if resp := first.send("POST", "/ui/x", nil); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a form beyond the bound: %s", resp.Status)
	}
	if resp := second.send("GET", "/ui/x", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("a page within the bound: %s", resp.Status)
	}
	for range 2 {
		held.Go(func() { first.copy().send("GET", "/ui/held", nil) })
		<-began
	}
	if resp := second.send("GET", "/ui/x", nil); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a page beyond the bound: %s", resp.Status)
	}
	if resp := other.send("GET", "/ui/x", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("a page of another: %s", resp.Status)
	}
	close(hold)
	held.Wait()
	if len(f.visits.held) != 0 {
		t.Errorf("still counted: %v", f.visits.held)
	}
}

// copy returns a browser with the same cookies that can be used at the same time.
func (b *browser) copy() *browser {
	c := b.f.browser()
	for name, value := range b.cookies {
		c.cookies[name] = value
	}
	return c
}

// TestSignInsAreBounded: a key that signs in again and again does not fill the audit trail, and others sign in.
func TestSignInsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range mostSignIns {
		if resp := f.browser().signIn("reader-key", ""); resp.StatusCode != http.StatusSeeOther {
			t.Fatal(resp.Status)
		}
	}
	recorded := len(f.made)
	if resp := f.browser().signIn("reader-key", ""); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" || len(f.made) != recorded {
		t.Errorf("one more: %s, %d entries", resp.Status, len(f.made)-recorded)
	}
	if resp := f.browser().signIn("operator-key", ""); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("the operator: %s", resp.Status)
	}
	f.change(func() { f.now = f.now.Add(time.Minute) })
	if resp := f.browser().signIn("reader-key", ""); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("a minute later: %s", resp.Status)
	}
}
