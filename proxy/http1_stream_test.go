package proxy_test

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

// TestEventsPassAtOnce waits for the first event of an endless stream.
func TestEventsPassAtOnce(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	release := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: one\n\n")
		w.(http.Flusher).Flush()
		<-release
		fmt.Fprint(w, "data: two\n\n")
	}
	for name, h2 := range map[string]bool{"h1": false, "h2": true} {
		_, port := l.HTTPSServer(h2, handler)
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		res, err := l.HTTPClient(port, h2).Get("https://" + proxytest.HostPort(port) + "/")
		if err != nil {
			t.Fatal(name, err)
		}
		r := bufio.NewReader(res.Body)
		if line, err := r.ReadString('\n'); line != "data: one\n" {
			t.Fatalf("%s: %q, %v", name, line, err)
		}
		if name == "h1" {
			release <- struct{}{}
		} else {
			go func() { release <- struct{}{} }()
		}
		if got := proxytest.ReadAll(t, r); !strings.Contains(got, "two") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestBulk transfers many times the flow-control windows of HTTP/2, down and up.
func TestBulk(t *testing.T) {
	t.Parallel()
	size := nightly.Size(8<<20, 64<<20)
	block := make([]byte, 1<<20)
	_, _ = rand.Read(block)
	whole := sha256.New()
	for range size >> 20 {
		whole.Write(block)
	}
	want := fmt.Sprintf("%x", whole.Sum(nil))
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			sum := sha256.New()
			n, _ := io.Copy(sum, r.Body)
			fmt.Fprintf(w, "%d %x", n, sum.Sum(nil))
			return
		}
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", strconv.Itoa(size))
		}
		for range size >> 20 {
			_, _ = w.Write(block)
		}
	}
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.Patience = 10 * time.Minute // 3 s under the race detector alone, over a minute beside other load
	for _, kind := range []string{"h1", "h2", "h2 to h1"} {
		_, port := l.HTTPSServer(kind == "h2", handler)
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		client := l.HTTPClient(port, kind != "h1")
		for _, path := range []string{"/length", "/chunked"} {
			res, err := client.Get("https://" + proxytest.HostPort(port) + path)
			if err != nil {
				t.Fatal(kind, err)
			}
			sum := sha256.New()
			if _, err := io.Copy(sum, res.Body); err != nil {
				t.Fatal(kind, err)
			}
			if got := fmt.Sprintf("%x", sum.Sum(nil)); got != want {
				t.Errorf("%s down %s: differs", kind, path)
			}
			body := io.Reader(&repeated{block: block, n: size >> 20})
			req, err := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+path, body)
			if err != nil {
				t.Fatal(err)
			}
			if path == "/length" {
				req.ContentLength = int64(size)
			}
			res, err = client.Do(req)
			if err != nil {
				t.Fatal(kind, err)
			}
			if got := proxytest.ReadAll(t, res.Body); got != fmt.Sprintf("%d %s", size, want) {
				t.Errorf("%s up %s: %s", kind, path, got)
			}
		}
	}
}

// repeated yields a block n times.
type repeated struct {
	block []byte
	n     int
	at    int
}

func (r *repeated) Read(b []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	n := copy(b, r.block[r.at:])
	if r.at += n; r.at == len(r.block) {
		r.at, r.n = 0, r.n-1
	}
	return n, nil
}

// TestEarlyAnswerPassesWhileTheUploadRuns: the server answers before it has read the body, and then echoes the rest.
func TestEarlyAnswerPassesWhileTheUploadRuns(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
		_, _ = io.CopyN(c, req.Body, 10)
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	res := proxytest.Ask(t, c, r, "POST / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nContent-Length: 10\r\n\r\nhello", "POST")
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	if _, err := io.WriteString(c, "world"); err != nil {
		t.Fatal(err)
	}
	if got := proxytest.ReadAll(t, res.Body); got != "helloworld" {
		t.Errorf("%q", got)
	}
}

// TestRejectedUploadIsTold: the server answers 413 and stops reading, while the client continues to send for a while.
func TestRejectedUploadIsTold(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	port := l.RawServer(false, func(c net.Conn, r *bufio.Reader) {
		_, _ = http.ReadRequest(r)
		_, _ = io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair("", port, false)
	go func() {
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nContent-Length: 10000000\r\n\r\n")
		for range 10 {
			if _, err := c.Write(make([]byte, 10000)); err != nil {
				return
			}
		}
	}()
	res := proxytest.ReadResponse(t, bufio.NewReader(c), "POST")
	if got := proxytest.ReadAll(t, res.Body); res.StatusCode != 413 || got != "no" || !res.Close {
		t.Errorf("%s %q close %v", res.Status, got, res.Close)
	}
}

// TestStaleConnectionIsRetried: the server closes kept connections without an answer just when they are used.
func TestStaleConnectionIsRetried(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var conns atomic.Int32
	port := l.RawServer(false, func(c net.Conn, r *bufio.Reader) {
		conns.Add(1)
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		_, _ = http.ReadRequest(r) // read, and then closed without an answer
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair("", port, false)
	r := bufio.NewReader(c)
	for i := range 3 {
		res := proxytest.Ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
		if got := proxytest.ReadAll(t, res.Body); got != "ok" {
			t.Fatalf("request %d: %d %q", i, res.StatusCode, got)
		}
	}
	if got := conns.Load(); got != 3 {
		t.Errorf("%d connections", got)
	}
	res := proxytest.Ask(t, c, r, "POST / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nContent-Length: 1\r\n\r\nx", "POST")
	if proxytest.ReadAll(t, res.Body); res.StatusCode != 502 {
		t.Errorf("a POST was repeated: %s", res.Status)
	}
}

// TestPostIsNotSentOnAClosedConnection: the server closes a kept connection before it is used. A request that must not be
// sent twice is sent once, on another connection.
func TestPostIsNotSentOnAClosedConnection(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var posts atomic.Int32
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if body, _ := io.ReadAll(req.Body); len(body) > 0 {
			posts.Add(1)
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	for i := range 3 {
		if got := proxytest.ReadAll(t, proxytest.Ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET").Body); got != "ok" {
			t.Fatalf("%q", got)
		}
		proxytest.Await(t, "the end of the server's connection", func() bool { return halfClosed(t, port) == 1 || proxytest.IdleUpstreams(l) == 1 || l.Upstreams() == 0 })
		res := proxytest.Ask(t, c, r, "POST / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nContent-Length: 1\r\n\r\nx", "POST")
		if got := proxytest.ReadAll(t, res.Body); got != "ok" || posts.Load() != int32(i)+1 {
			t.Errorf("%s %q; the server read %d POSTs", res.Status, got, posts.Load())
		}
	}
}

// halfClosed returns the number of connections to a port that the server has closed and the proxy has not.
func halfClosed(t *testing.T, port uint16) (n int) {
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); strings.HasSuffix(f[2], fmt.Sprintf(":%04X", port)) && f[3] == "08" { // CLOSE_WAIT
			n++
		}
	}
	return n
}

// TestUpstreamConnectionIsShared: clients of one box share a connection, and different boxes do not.
func TestUpstreamConnectionIsShared(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var peers sync.Map
	_, port := l.HTTPServer(func(w http.ResponseWriter, r *http.Request) {
		peers.Store(r.RemoteAddr, true)
		fmt.Fprint(w, "ok")
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	for i := range 5 {
		c := l.DialPair("", port, false)
		res := proxytest.Ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nConnection: close\r\n\r\n", "GET")
		proxytest.ReadAll(t, res.Body)
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
		l.Events.Wait(t, i+1)
		proxytest.Await(t, "an idle upstream connection", func() bool { return proxytest.IdleUpstreams(l) == 1 })
	}
	if got := proxytest.CountOf(&peers); got != 1 {
		t.Errorf("%d upstream connections for five clients of a box", got)
	}
	l.Proxy.CloseBox(l.Box.ID)
	if got := proxytest.IdleUpstreams(l); got != 0 {
		t.Errorf("%d connections kept for a closed box", got)
	}
}

// TestTighteningCutsARequestUnderWay changes the policy while a response is being sent.
func TestTighteningCutsARequestUnderWay(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	for name, h2 := range map[string]bool{"h1": false, "h2": true} {
		_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "one\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		res, err := l.HTTPClient(port, h2).Get("https://" + proxytest.HostPort(port) + "/")
		if err != nil {
			t.Fatal(name, err)
		}
		r := bufio.NewReader(res.Body)
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(name, err)
		}
		l.Policy(policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{proxytest.API}}, nil)
		start := time.Now()
		l.Proxy.Recheck(l.Box.ID)
		if _, err := r.ReadByte(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: the stream went on, or ended as if whole: %v", name, err)
		}
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("%s: cut after %v", name, d)
		}
	}
	for _, e := range l.Events.Wait(t, 2) {
		if e.Reason != name.ReasonPolicyChanged || e.Verdict != policy.Deny {
			t.Errorf("event %+v", e)
		}
	}
}
