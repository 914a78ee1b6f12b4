package authlimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"boxgate/quota"
)

// server counts how often each connection has become idle.
type server struct {
	address string
	mu      sync.Mutex
	changed *sync.Cond
	idles   map[string]int // by the client's address
}

func (s *server) becomes(conn net.Conn, state http.ConnState) {
	if state != http.StateIdle {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idles[conn.RemoteAddr().String()]++
	s.changed.Broadcast()
}

// awaitIdle waits until the connection of a client has become idle n times.
func (s *server) awaitIdle(client net.Conn, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.idles[client.LocalAddr().String()] < n {
		s.changed.Wait()
	}
}

// keyedServer serves requests whose header Key is the ID of a key. A request for "wait" blocks until the test ends.
func keyedServer(t *testing.T, of quota.Config) (*server, *quota.Book) {
	t.Helper()
	book := quota.New(of)
	served := &server{idles: map[string]int{}}
	served.changed = sync.NewCond(&served.mu)
	k := NewKeyed(book)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := New(ln, 64)
	l.Keyed = k
	ctx, end := context.WithCancel(t.Context())
	s := &httptest.Server{Listener: l, Config: &http.Server{
		ConnContext: ConnContext,
		ConnState: func(c net.Conn, state http.ConnState) {
			k.State(c, state)
			served.becomes(c, state)
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id := r.Header.Get("Key")
			if err := k.Shown(r, quota.Holder{Type: quota.APIKey, ID: id, Operator: id == "operator"}); err != nil {
				w.Header().Set("Connection", "close")
				http.Error(w, err.Error(), http.StatusTooManyRequests)
				return
			}
			if r.URL.Path == "/wait" {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-ctx.Done()
			}
		}),
	}}
	s.Start()
	t.Cleanup(s.Close)
	t.Cleanup(end)
	served.address = ln.Addr().String()
	return served, book
}

// client is one connection.
type client struct {
	net.Conn
	in     *bufio.Reader
	server *server
	served int // requests answered
}

func dial(t *testing.T, s *server) *client {
	t.Helper()
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &client{Conn: c, in: bufio.NewReader(c), server: s}
}

// get sends a request and returns its status once the server waits for the next one; 0: the connection is closed.
func (c *client) get(key, path string) int {
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nKey: %s\r\n\r\n", path, key)
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0
	}
	if path != "/wait" {
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.StatusCode == http.StatusOK {
			c.served++
			c.server.awaitIdle(c, c.served)
		}
	}
	return resp.StatusCode
}

func (c *client) closed() bool {
	_, err := c.in.ReadByte()
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// A key that opens more connections than allowed loses the one that has been idle longest. Connections with requests
// stay; if all have one, the new connection is refused. Other keys are not affected.
func TestAKeyLosesIdleConnections(t *testing.T) {
	t.Parallel()
	var l quota.Limits
	l[quota.Connections] = 3
	s, book := keyedServer(t, quota.Config{Defaults: l})
	busy := dial(t, s)
	if status := busy.get("ci", "/wait"); status != 200 {
		t.Fatal(status)
	}
	var idle []*client
	for range 10 {
		c := dial(t, s)
		if status := c.get("ci", "/"); status != 200 {
			t.Fatal(status)
		}
		idle = append(idle, c)
	}
	for i, c := range idle[:8] {
		if !c.closed() {
			t.Errorf("idle connection %d is open", i)
		}
	}
	for _, c := range idle[8:] {
		if status := c.get("ci", "/wait"); status != 200 {
			t.Errorf("one of the latest: %d", status)
		}
	}
	if status := dial(t, s).get("ci", "/"); status != 429 {
		t.Errorf("one more beside three with requests: %d", status)
	}
	for _, key := range []string{"other", "operator"} {
		if status := dial(t, s).get(key, "/"); status != 200 {
			t.Errorf("%s: %d", key, status)
		}
	}
	if used := book.Use(quota.Holder{Type: quota.APIKey, ID: "ci"})[quota.Connections]; used.Used != 3 {
		t.Errorf("%+v", used)
	}
}

// If the shared limit is reached, an idle connection of the key with the most connections is closed.
func TestTheKeyWithMostConnectionsGivesWay(t *testing.T) {
	t.Parallel()
	var totals quota.Limits
	totals[quota.Connections] = 64 // 48 for keys other than the operator's, 24 for each of them
	s, book := keyedServer(t, quota.Config{Totals: totals})
	var operators []*client
	for range 40 {
		c := dial(t, s)
		if status := c.get("operator", "/"); status != 200 {
			t.Fatal(status)
		}
		operators = append(operators, c)
	}
	for i := range 4 {
		for range 30 {
			if status := dial(t, s).get(fmt.Sprint("key", i), "/"); status != 200 && status != 429 {
				t.Fatal(status)
			}
		}
	}
	if use, _ := book.Shared(quota.Connections); use.Used > 48 || use.Used < 30 {
		t.Errorf("%+v", use)
	}
	late := dial(t, s)
	for range 2 {
		if status := late.get("late", "/"); status != 200 {
			t.Errorf("a key that arrives late: %d", status)
		}
	}
	for _, c := range operators {
		if status := c.get("operator", "/"); status != 200 {
			t.Fatalf("an idle connection of the operator was evicted: %d", status)
		}
	}
}

// TestAttackIdleConnectionsOfOthersAreClosed: a key at its limit whose connections are all busy does not close
// connections of other keys.
func TestAttackIdleConnectionsOfOthersAreClosed(t *testing.T) {
	t.Parallel()
	var totals quota.Limits
	totals[quota.Connections] = 64 // 24 for each key
	s, _ := keyedServer(t, quota.Config{Totals: totals})
	var honest []*client
	for i := range 8 {
		c := dial(t, s)
		if status := c.get(fmt.Sprint("honest", i%2), "/"); status != 200 {
			t.Fatal(status)
		}
		honest = append(honest, c)
	}
	for range 24 {
		if status := dial(t, s).get("hostile", "/wait"); status != 200 {
			t.Fatal(status)
		}
	}
	for range 8 {
		if status := dial(t, s).get("hostile", "/"); status != 429 {
			t.Errorf("one more: %d", status)
		}
	}
	for _, c := range honest {
		if status := c.get("honest", "/"); status != 200 {
			t.Errorf("an idle connection of another key: %d", status)
		}
	}
}

// slowConn is a connection that closes slowly.
type slowConn struct {
	net.Conn
	begun, goOn chan struct{}
}

func (c slowConn) Close() error {
	close(c.begun)
	<-c.goOn
	return nil
}

// TestAttackClosingConnectionsHoldsUpOtherKeys: a key that opens connections, each of which closes an idle one of its
// own, does not delay requests of other keys.
func TestAttackClosingConnectionsHoldsUpOtherKeys(t *testing.T) {
	t.Parallel()
	var totals quota.Limits
	totals[quota.Connections] = 8 // 3 for each key
	k := NewKeyed(quota.New(quota.Config{Totals: totals}))
	l := New(nil, 64)
	l.Keyed = k
	idle := slowConn{begun: make(chan struct{}), goOn: make(chan struct{})}
	shows := func(id string, of net.Conn) (*conn, error) {
		c := &conn{Conn: of, listener: l}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		return c, k.Shown(r.WithContext(context.WithValue(r.Context(), connKey{}, c)), quota.Holder{Type: quota.APIKey, ID: id})
	}
	for n := range 3 {
		c, err := shows("hostile", idle)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			k.State(c, http.StateIdle)
		}
	}
	one, other := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := shows("hostile", nil)
		one <- err
	}()
	<-idle.begun
	go func() {
		_, err := shows("honest", nil)
		other <- err
	}()
	select {
	case err := <-other:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a request waits while a connection of another key is closed")
	}
	close(idle.goOn)
	if err := <-one; err != nil {
		t.Error(err)
	}
}
