package ingress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/ingress/pages"
)

// heldBack is a sign-in whose form has been announced but not sent.
type heldBack struct {
	conn net.Conn
	in   *bufio.Reader
}

// holdBack begins a sign-in with a form of a given length.
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

// lookedUp waits for the lookups of n requests on separate connections: two in each handshake, and one for the request.
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

// Many forms held back by a visitor allow no more attempts than forms that are sent immediately.
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

// A credential that is replaced while the form is on its way is refused.
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

// trickled begins a sign-in whose form arrives byte by byte without end. It returns the status of the response.
func (f *fixture) trickled(t *testing.T, host string, h2 bool) <-chan int {
	t.Helper()
	status := make(chan int, 1)
	trickle := func(to io.Writer) {
		for range time.Tick(50 * time.Millisecond) {
			if _, err := to.Write([]byte("a")); err != nil {
				return
			}
		}
	}
	if !h2 {
		h := f.holdBack(t, host, formMost)
		go trickle(h.conn)
		go func() {
			defer close(status)
			if res, err := http.ReadResponse(h.in, nil); err == nil {
				status <- res.StatusCode
			}
		}()
		return status
	}
	body, to := io.Pipe()
	t.Cleanup(func() { body.Close() })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+host+pages.SignInPath, body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = formMost
	c := f.client(t, true)
	go trickle(to)
	go func() {
		defer close(status)
		if res, err := c.Do(req); err == nil {
			res.Body.Close()
			status <- res.StatusCode
		}
	}()
	return status
}

// held returns the number of registered requests.
func (f *fixture) held() (n int) {
	f.active.mu.Lock()
	defer f.active.mu.Unlock()
	for r := f.active.open; r != nil; r = r.next {
		n++
	}
	return n
}

// A form that arrives byte by byte must still be complete in time.
func TestFormThatNeverEnds(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2 %v", h2), func(t *testing.T) {
			t.Parallel()
			f := start(t, func(c *Config) { c.ReadHeaderTimeout = 3 * time.Second }) // also applies to the form
			f.guarded("app", record(t))
			select {
			case status := <-f.trickled(t, "app"+domain, h2):
				if status != http.StatusRequestTimeout {
					t.Errorf("answered %d", status)
				}
			case <-time.After(time.Minute):
				t.Error("the form goes on")
			}
		})
	}
}

// A form that has not fully arrived holds a place like every request, is cut with its URL, and does not keep the box awake.
func TestFormHoldsAPlaceAndIsCut(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		var used atomic.Int64
		awake := &sleepers{used: &used}
		awake.up.Store(true)
		f := start(t, func(c *Config) { c.Requests, c.Boxes = 4, awake }) // so a visitor has one place
		target := f.guarded("app", record(t))
		status := f.trickled(t, "app"+domain, h2)
		f.await(t, "the form", func() bool { return f.held() == 1 })
		bearer := with("Authorization", "Bearer tok")
		if resp, _ := get(t, f.client(t, true), "https://app"+domain+"/", bearer); resp.StatusCode != 429 {
			t.Errorf("h2 %v: another request of the visitor: %s", h2, resp.Status)
		}
		f.remove("app" + domain)
		f.CloseURL(target.ID) // returns when the request has ended
		if got := <-status; got != 401 {
			t.Errorf("h2 %v: answered %d", h2, got)
		}
		if used.Load() > 0 {
			t.Errorf("h2 %v: a stranger's form counts as use of the box", h2)
		}
		f.set("app"+domain, target)
		f.await(t, "the place", func() bool {
			resp, _ := get(t, f.client(t, true), "https://app"+domain+"/", bearer)
			return resp.StatusCode == 200
		})
	}
}
