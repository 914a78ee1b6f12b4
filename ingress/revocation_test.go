package ingress

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Revoking a URL, or changing its credential, cuts its open connections; others stay.
func TestRevocationCutsOpenSockets(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	auth := Auth{Bearer: digest(BearerDigest("tok"))}
	server := echoServer(t)
	gone := f.expose("gone", server, auth)
	f.expose("stays", server, auth)
	c, _, err := dialWebSocket(t, f, "gone", "tok")
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := dialWebSocket(t, f, "stays", "tok")
	if err != nil {
		t.Fatal(err)
	}
	f.remove("gone" + domain)
	f.CloseURL(gone.ID)
	began := time.Now()
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Fatal("the socket still delivers")
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("cut only after %v", took)
	}
	if err := echo(t.Context(), other, "still here"); err != nil {
		t.Errorf("another URL's socket was disturbed: %v", err)
	}
	if _, resp, err := dialWebSocket(t, f, "gone", "tok"); err == nil || resp.StatusCode != 404 {
		t.Error("the revoked URL still opens")
	}
	f.CloseBox("box1")
	if _, _, err := other.Read(t.Context()); err == nil {
		t.Error("the socket outlived its box")
	}
}

// A client that does not read cannot keep its request alive after a revocation.
func TestRevocationCutsStalledDownload(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chunk := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	target := f.expose("big", server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		req, _ := http.NewRequest(http.MethodGet, "https://big"+domain+"/", nil)
		resp, err := f.client(t, h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		cut := make(chan struct{})
		go func() { f.CloseURL(target.ID); close(cut) }()
		select {
		case <-cut:
		case <-time.After(time.Minute):
			t.Fatal("CloseURL hangs on a client that does not read")
		}
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error("the download ended as if it were whole")
		}
		resp.Body.Close()
	}
}

// Clients that do not read are cut without the grace period for refusing requests without a response: in this test it never
// ends.
func TestRevocationDoesNotWaitForReaders(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.grace = time.Hour
	f.script(t, "big", func(c net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
		for chunk := make([]byte, 64<<10); err == nil; {
			_, err = c.Write(chunk)
		}
	})
	const each = 40
	var responses []*http.Response
	for range each {
		resp, err := f.client(t, false).Get("https://big" + domain + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		responses = append(responses, resp)
	}
	v := f.frames(t, "big")
	for range each {
		v.ask(true, to("GET", "big", "/")...)
	}
	v.until(each, http2.FrameHeaders)
	cut := make(chan struct{})
	began := time.Now()
	go func() { f.CloseURL("big"); close(cut) }()
	select {
	case <-cut:
		t.Log("cut in ", time.Since(began))
	case <-time.After(time.Minute):
		t.Fatalf("%d of %d requests are not cut", f.active.count(), 2*each)
	}
	if n := f.active.count(); n != 0 {
		t.Errorf("%d are still open", n)
	}
	v.until(each, http2.FrameRSTStream)
	for _, resp := range responses {
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error("a download ended as if it were whole")
		}
	}
}

// until reads frames until n of a type have arrived.
func (v *frames) until(n int, want http2.FrameType) {
	v.t.Helper()
	for n > 0 {
		f, err := v.ReadFrame()
		if err != nil {
			v.t.Fatalf("%v, with %d to come of %v", err, n, want)
		}
		if f.Header().Type == want {
			n--
		}
	}
}

// The URL is looked up again after registration: a request that passed the check just before the URL was revoked is refused.
func TestRevocationBetweenCheckAndStart(t *testing.T) {
	t.Parallel()
	box := record(t)
	for _, h2 := range []bool{false, true} {
		urls := &untilBegun{}
		f := start(t, func(c *Config) { c.URLs = urls })
		target := f.expose("u", box.Server, Auth{Open: true})
		urls.mu.Lock()
		urls.target, urls.active = target, &f.active
		urls.mu.Unlock()
		resp, _ := get(t, f.client(t, h2), "https://u"+domain+"/", nil)
		if resp.StatusCode != 401 || box.count() != 0 {
			t.Errorf("h2 %v: status %d", h2, resp.StatusCode)
		}
	}
}

// untilBegun returns its target on lookups until a request for it is registered.
type untilBegun struct {
	mu     sync.Mutex
	target Target
	active *active
}

func (u *untilBegun) Lookup(string) (Target, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.target, u.active.count() == 0
}
