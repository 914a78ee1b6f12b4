package http2_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/internal/socket/sockettest"
	"boxgate/proxy/proxytest"
)

// TestServerVanishesBehindASharedConnection: when the server of an HTTP/2 connection stops acknowledging data, repeatable requests
// are sent once more, on another connection, and others wait.
func TestServerVanishesBehindASharedConnection(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll)
	var mu sync.Mutex
	var conns []net.Conn
	var gets, posts atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			gets.Add(1)
		} else {
			posts.Add(1)
		}
	}))
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{GetCertificate: l.Upstream.ForHello}
	s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
		return ctx
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	port := proxytest.PortOf(t, s.Listener)
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	url := "https://" + proxytest.HostPort(port) + "/"
	client := l.HTTPClient(port, true)
	if res, _ := proxytest.Get(t, client, url, nil); res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	mu.Lock()
	back := sockettest.Vanish(t, conns[0])
	mu.Unlock()
	posted := make(chan string, 1)
	go func() {
		res, err := client.Post(url, "", nil)
		if err != nil {
			posted <- err.Error()
			return
		}
		_ = res.Body.Close()
		posted <- res.Status
	}()
	proxytest.Await(t, "the request that waits", func() bool { return proxytest.IdleUpstreams(l) == 0 })
	if res, _ := proxytest.Get(t, client, url, nil); res.StatusCode != http.StatusOK || gets.Load() != 2 {
		t.Errorf("the request that can be repeated: %s, %d times", res.Status, gets.Load()-1)
	}
	if n := posts.Load(); n != 0 {
		t.Errorf("the request that cannot be repeated has come %d times, on another connection", n)
	}
	back()
	if status := <-posted; status != "200 OK" || posts.Load() != 1 {
		t.Errorf("the request that cannot be repeated: %s, %d times", status, posts.Load())
	}
}
