package ingress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"boxgate/ingress/pages"
)

// heldBack is a sign-in whose form the visitor has announced, and the gateway waits for.
type heldBack struct {
	conn net.Conn
	in   *bufio.Reader
}

// holdBack begins a sign-in with a form of a length.
func (f *fixture) holdBack(t *testing.T, host string, length int) heldBack {
	t.Helper()
	c := f.connectTo(t, host)
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nOrigin: https://%s\r\nAccept: text/html\r\nContent-Type: application/x-www-form-urlencoded\r\n"+
		"Content-Length: %d\r\n\r\n", pages.SignInPath, host, host, length)
	if err != nil {
		t.Fatal(err)
	}
	return heldBack{c, bufio.NewReader(c)}
}

// lookedUp waits until the URL of each of n requests, all on connections of their own, has been looked up: twice in the
// handshake, and once for the request.
func (f *fixture) lookedUp(t *testing.T, n int) {
	t.Helper()
	f.await(t, "requests", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.looked >= 3*n
	})
}

// finish sends the form and returns the status.
func (h heldBack) finish(t *testing.T, form string) int {
	t.Helper()
	_, _ = io.WriteString(h.conn, form)
	res, err := http.ReadResponse(h.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// Forms that a visitor holds back until it has many of them are no more attempts than those that it sends at once.
func TestFormsHeldBackAreAttempts(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.FailedCredentials = 5 })
	f.guarded("app", record(t))
	var held []heldBack
	for range 20 {
		held = append(held, f.holdBack(t, "app"+domain, len("token=tok")))
	}
	f.lookedUp(t, len(held))
	count := map[int]int{}
	for _, h := range held[1:] {
		count[h.finish(t, "token=bad")]++
	}
	if count[401] != 5 || count[429] != 14 {
		t.Errorf("by status: %v", count)
	}
	if status := held[0].finish(t, "token=tok"); status != 429 {
		t.Errorf("the right token after them: %d", status)
	}
}

// Right credentials are no failed attempts.
func TestRightFormsAreNoAttempts(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.FailedCredentials = 2 })
	f.guarded("app", record(t))
	for range 5 {
		if status := f.holdBack(t, "app"+domain, len("token=tok")).finish(t, "token=tok"); status != 303 {
			t.Fatal(status)
		}
	}
}

// A credential that was replaced while the form was on its way opens nothing.
func TestCredentialReplacedDuringTheForm(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	target := f.guarded("app", record(t))
	h := f.holdBack(t, "app"+domain, len("token=tok"))
	f.lookedUp(t, 1)
	target.Auth.Bearer = digest(BearerDigest("new"))
	f.set("app"+domain, target)
	if status := h.finish(t, "token=tok"); status != 401 {
		t.Errorf("the old token: %d", status)
	}
}
