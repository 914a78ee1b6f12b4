package proxy_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/memory"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// Memory charged for an HTTP/2 connection in addition to TLS, with and without a running request.
const fullHTTP2, idleHTTP2 = 136 << 10, 32 << 10

// keptHTTP2 are intercepted connections over HTTP/2.
type keptHTTP2 struct {
	*proxytest.Rig
	budget *memory.Budget
	at     string
}

// keepHTTP2 lets a box connect to one host, whose server answers requests for /wait after wait is closed.
func keepHTTP2(t *testing.T, most int64, wait <-chan struct{}) *keptHTTP2 {
	t.Helper()
	k := &keptHTTP2{budget: memory.New(64<<20, most)}
	k.Rig = proxytest.New(t, proxytest.Allow(cdn), func(c *proxy.Config) { c.Memory = k.budget })
	cert := k.Upstream.Certificate(t, cdn)
	server := k.Server(443, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
		if s.Handshake() != nil {
			return
		}
		//lint:ignore SA1019 the connection is the test's own
		(&http2.Server{}).ServeConn(s, &http2.ServeConnOpts{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/wait" {
				<-wait
			}
			_, _ = io.Copy(w, q.Body)
		})})
	})
	k.Names.Set(cdn, server.Addr())
	k.Policy(proxytest.Allow(cdn), map[string]map[string]string{cdn: {"X-Key": "k"}})
	k.at = k.Listen(server)
	return k
}

// connect returns a new connection, and its TCP connection.
func (k *keptHTTP2) connect(t *testing.T) (*http2.ClientConn, *net.TCPConn) {
	t.Helper()
	raw := proxytest.DialTo(t, k.at)
	c := tls.Client(raw, &tls.Config{ServerName: cdn, RootCAs: k.BoxCA.Pool(), NextProtos: []string{"h2"}})
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	//lint:ignore SA1019 one connection and no other
	client, err := (&http2.Transport{}).NewClientConn(c)
	if err != nil {
		t.Fatal(err)
	}
	return client, raw
}

// post sends a request and returns the body of the response.
func post(t *testing.T, c *http2.ClientConn, path, body string) (string, error) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+cdn+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.RoundTrip(q)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		answer = []byte(res.Status)
	}
	return string(answer), err
}

// rests waits until n connections are charged as idle ones.
func (k *keptHTTP2) rests(t *testing.T, n int64) {
	t.Helper()
	proxytest.Await(t, "the connections to rest", func() bool {
		return k.budget.InUse(memory.TLS) <= n*idleTLS && k.budget.InUse(memory.HTTP2) <= n*idleHTTP2
	})
	if k.budget.InUse(memory.TLS) == 0 || k.budget.InUse(memory.HTTP2) == 0 {
		t.Error("idle connections are not charged")
	}
}

// TestIdleHTTP2InterceptionsAreChargedForWhatTheyHold: HTTP/2 connections without a request release memory that they do not
// use, so that more of them fit, and reserve all of it again before the next read from the client. If memory is short, the
// client receives an error that marks its request as not processed.
func TestIdleHTTP2InterceptionsAreChargedForWhatTheyHold(t *testing.T) {
	t.Parallel()
	k := keepHTTP2(t, 5<<20, nil)
	const n = 20 // at 360 KiB, 14 would fit
	var all []*http2.ClientConn
	for range n {
		c, _ := k.connect(t)
		if answer, err := post(t, c, "/", "hello"); err != nil || answer != "hello" {
			t.Fatalf("connection %d: %q, %v", len(all), answer, err)
		}
		if all = append(all, c); len(all)%5 == 0 {
			k.rests(t, int64(len(all)))
		}
	}
	for i, c := range all[:5] {
		if answer, err := post(t, c, "/", "again"); err != nil || answer != "again" {
			t.Fatalf("connection %d: %q, %v", i, answer, err)
		}
	}
	k.rests(t, n)
	account := k.budget.Account(string(k.Box.ID))
	taken := 0
	for account.Acquire(memory.Buffers, 16<<10) {
		taken += 16 << 10
	}
	if _, err := post(t, all[0], "/", "full"); err == nil {
		t.Error("without memory a request was served")
	} else if !strings.Contains(err.Error(), "GOAWAY") && !strings.Contains(err.Error(), "closing") {
		t.Errorf("the client got %v instead of an error that marks its request as not processed", err)
	}
	account.Release(memory.Buffers, taken)
	if answer, err := post(t, all[1], "/", "room"); err != nil || answer != "room" {
		t.Errorf("with memory: %q, %v", answer, err)
	}
	for _, c := range all {
		_ = c.Close()
	}
	proxytest.Await(t, "every claim to be given back", func() bool { return k.budget.InUse(memory.TLS) == 0 && k.budget.InUse(memory.HTTP2) == 0 })
}

// TestAttackIdleHTTP2InterceptionHoldsMore: a connection with a running request, a partial record or a partial frame is
// charged for all memory that it may take, however long that lasts.
func TestAttackIdleHTTP2InterceptionHoldsMore(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{})
	k := keepHTTP2(t, 64<<20, answered)
	stays := func(t *testing.T, what string) {
		t.Helper()
		full := func() bool { return k.budget.InUse(memory.TLS) == fullTLS && k.budget.InUse(memory.HTTP2) >= fullHTTP2 }
		proxytest.Await(t, "the connection to be charged", full)
		for until := time.Now().Add(time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			if !full() {
				t.Fatalf("with %s, %d and %d bytes are charged", what, k.budget.InUse(memory.TLS), k.budget.InUse(memory.HTTP2))
			}
		}
	}
	c, raw := k.connect(t)
	var requests sync.WaitGroup
	requests.Go(func() {
		if answer, err := post(t, c, "/wait", "late"); err != nil || answer != "late" {
			t.Errorf("a slow request: %q, %v", answer, err)
		}
	})
	stays(t, "a request under way")
	close(answered)
	requests.Wait()
	k.rests(t, 1)
	if _, err := raw.Write([]byte{23, 3, 3, 0x40, 0, 1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	stays(t, "half a record")
	_ = raw.Close()
	proxytest.Await(t, "every claim to be given back", func() bool { return k.budget.InUse(memory.TLS) == 0 })

	secure := terminated(t, k.at, "h2")
	framer := http2.NewFramer(secure, secure)
	_, _ = io.WriteString(secure, http2.ClientPreface)
	_ = framer.WriteSettings()
	k.rests(t, 1)
	if _, err := secure.Write([]byte{0, 0x20, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3}); err != nil { // three bytes of 8 KiB of DATA
		t.Fatal(err)
	}
	stays(t, "half a frame")
}

// TestIdleHTTP2InterceptionsHoldWhatTheyAreCharged: idle connections use less memory than they are charged, including that
// of their clients in this process, but not less by an order of magnitude. It is not parallel: other tests wait while it
// measures.
func TestIdleHTTP2InterceptionsHoldWhatTheyAreCharged(t *testing.T) {
	k := keepHTTP2(t, 64<<20, nil)
	held := func() (inUse, charged int64) {
		var m runtime.MemStats
		for range 5 { // stacks shrink by half each time
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		for _, kind := range memory.Kinds() {
			if kind != memory.Upstreams {
				charged += k.budget.InUse(kind)
			}
		}
		return int64(m.HeapAlloc + m.StackInuse), charged
	}
	var all []*http2.ClientConn
	add := func(n int) {
		for range n {
			c, _ := k.connect(t)
			if answer, err := post(t, c, "/", "hello"); err != nil || answer != "hello" {
				t.Fatalf("connection %d: %q, %v", len(all), answer, err)
			}
			all = append(all, c)
		}
		proxytest.Await(t, "the connections to rest", func() bool { return k.budget.InUse(memory.HTTP2) <= int64(len(all))*idleHTTP2 })
	}
	add(10) // fills pools and caches
	inUse, charged := held()
	const n = 100
	add(n)
	more, moreCharged := held()
	uses, charges := (more-inUse)/n, (moreCharged-charged)/n
	t.Logf("an idle connection holds %d bytes with its client, and is charged %d", uses, charges)
	if uses > charges || uses < charges/10 {
		t.Errorf("an idle connection uses %d bytes and is charged %d", uses, charges)
	}
	for _, c := range all {
		_ = c.Close()
	}
}
