package ingress

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
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

// The URL is looked up again after registration: a request that passed the check just before the URL went is refused.
func TestRevocationBetweenCheckAndStart(t *testing.T) {
	t.Parallel()
	box := record(t)
	for _, h2 := range []bool{false, true} {
		urls := &onceURLs{}
		f := start(t, func(c *Config) { c.URLs = urls })
		target := f.expose("u", box.Server, Auth{Open: true})
		urls.mu.Lock()
		urls.target = target
		urls.mu.Unlock()
		resp, _ := get(t, f.client(t, h2), "https://u"+domain+"/", nil)
		if resp.StatusCode != 401 || box.count() != 0 {
			t.Errorf("h2 %v: status %d", h2, resp.StatusCode)
		}
	}
}

// onceURLs finds its target once.
type onceURLs struct {
	mu     sync.Mutex
	target Target
	asked  int
}

func (u *onceURLs) Lookup(string) (Target, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked++
	return u.target, u.asked == 1
}
