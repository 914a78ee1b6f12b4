package http2_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"boxgate/internal/nightly"
	"boxgate/internal/socket/sockettest"
	"boxgate/proxy/proxytest"
)

// TestUnprocessedRequestsAreSentAgain: a request that the server reports as unprocessed is sent again, a bounded number of times,
// and only while its whole body is available.
func TestUnprocessedRequestsAreSentAgain(t *testing.T) {
	t.Parallel()
	refuse := func(s *rogue, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeRefusedStream) }
	leave := func(s *rogue, id uint32) { _ = s.WriteGoAway(id-1, http2.ErrCodeNo, nil); _ = s.conn.Close() }
	for name, c := range map[string]struct {
		unprocessed func(s *rogue, id uint32)
		times       int32 // that the server does so
		body        string
		answered    bool // else the client gets a reset that lets it send the request again
	}{
		"refused once":             {refuse, 1, "", true},
		"refused with a body":      {refuse, 1, strings.Repeat("x", 1000), true},
		"the server leaves":        {leave, 1, "", true},
		"refused ever again":       {refuse, 100, "", false},
		"refused after the upload": {afterUpload(refuse), 1, strings.Repeat("x", 1<<20), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			var asked, conns atomic.Int32
			port := rogueServer(l, func(s *rogue, id uint32) {
				if asked.Add(1) <= c.times {
					c.unprocessed(s, id)
					return
				}
				s.head(id, false, ":status", "200")
				_ = s.WriteData(id, true, []byte("ok"))
			}, &conns)
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			res, err := l.HTTPClient(port, true).Post("https://"+proxytest.HostPort(port)+"/bad", "text/plain", strings.NewReader(c.body))
			switch {
			case !c.answered:
				if err == nil || !strings.Contains(err.Error(), "REFUSED_STREAM") {
					t.Errorf("the client is told %v", err)
				}
			case err != nil:
				t.Fatal(err)
			default:
				if body := proxytest.ReadAll(t, res.Body); res.StatusCode != 200 || body != "ok" {
					t.Errorf("%s %s", res.Status, body)
				}
				_ = res.Body.Close()
			}
			want := min(c.times+1, 3)
			if c.body != "" && !c.answered {
				want = 1
			}
			if n := asked.Load(); n != want {
				t.Errorf("the server was asked %d times, want %d", n, want)
			}
			if e := l.Events.Wait(t, 1); len(e) != 1 || strings.Contains(e[0].Error, "did not handle the request") == c.answered {
				t.Errorf("%+v", e)
			}
		})
	}
}

// afterUpload calls then once the server has read more of a body than the gateway keeps for a retry.
func afterUpload(then func(*rogue, uint32)) func(*rogue, uint32) {
	return func(s *rogue, id uint32) {
		_ = s.WriteWindowUpdate(0, 1<<20)
		_ = s.WriteWindowUpdate(id, 1<<20)
		for n := 0; n < 512<<10; {
			f, err := s.ReadFrame()
			if err != nil {
				return
			}
			if d, ok := f.(*http2.DataFrame); ok {
				n += len(d.Data())
			}
		}
		then(s, id)
	}
}

// TestKeptHTTP1ConnectionThatEnds: if an HTTP/1.1 server closes a kept connection, a request without a body is sent again on a new
// one.
func TestKeptHTTP1ConnectionThatEnds(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var conns, posts atomic.Int32
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		conns.Add(1)
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		if req, err := http.ReadRequest(r); err == nil && req.Method == "POST" { // taken, and then closed without an answer
			posts.Add(1)
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	client, url := l.HTTPClient(port, true), "https://"+proxytest.HostPort(port)+"/"
	for range 2 {
		if res, body := proxytest.Get(t, client, url, nil); res.StatusCode != 200 || body != "ok" {
			t.Fatalf("%s %s", res.Status, body)
		}
		proxytest.Await(t, "an idle upstream connection", func() bool { return proxytest.IdleUpstreams(l) == 1 })
	}
	res, err := client.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 502 || posts.Load() != 1 || conns.Load() != 2 {
		t.Errorf("%s; the server got %d POSTs, and %d connections", res.Status, posts.Load(), conns.Load())
	}
}

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
