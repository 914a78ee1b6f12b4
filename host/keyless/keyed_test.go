package keyless

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"boxgate/quota"
)

// keyedServer serves requests whose header Key is the ID of a key, and waits with "wait" until the test ends.
func keyedServer(t *testing.T, of quota.Config) (address string, book *quota.Book) {
	t.Helper()
	book = quota.New(of)
	k := NewKeyed(book)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := New(ln, 64)
	l.Keyed = k
	ctx, end := context.WithCancel(t.Context())
	s := &httptest.Server{Listener: l, Config: &http.Server{
		ConnContext: ConnContext, ConnState: k.State,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id := r.Header.Get("Key")
			if err := k.Shown(r, quota.Holder{What: quota.APIKey, ID: id, Operator: id == "operator"}); err != nil {
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
	return ln.Addr().String(), book
}

// client is one connection.
type client struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, address string) *client {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &client{c, bufio.NewReader(c)}
}

// ask makes a request and returns its status; 0: the connection is closed.
func (c *client) ask(key, path string) int {
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nKey: %s\r\n\r\n", path, key)
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0
	}
	if path != "/wait" {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	return resp.StatusCode
}

func (c *client) closed() bool {
	_, err := c.in.ReadByte()
	return err != nil && !errors.Is(err, context.DeadlineExceeded)
}

// A key that opens more connections than it may loses the one that has been idle for longest. Those with requests stay, and where
// all have one, it gets no more; other keys have theirs.
func TestAKeyLosesIdleConnections(t *testing.T) {
	t.Parallel()
	var l quota.Limits
	l[quota.Connections] = 3
	address, book := keyedServer(t, quota.Config{Defaults: l})
	busy := dial(t, address)
	if status := busy.ask("ci", "/wait"); status != 200 {
		t.Fatal(status)
	}
	var idle []*client
	for range 10 {
		c := dial(t, address)
		if status := c.ask("ci", "/"); status != 200 {
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
		if status := c.ask("ci", "/wait"); status != 200 {
			t.Errorf("one of the latest: %d", status)
		}
	}
	if status := dial(t, address).ask("ci", "/"); status != 429 {
		t.Errorf("one more beside three with requests: %d", status)
	}
	for _, key := range []string{"other", "operator"} {
		if status := dial(t, address).ask(key, "/"); status != 200 {
			t.Errorf("%s: %d", key, status)
		}
	}
	if used := book.Use(quota.Holder{What: quota.APIKey, ID: "ci"})[quota.Connections]; used.Used != 3 {
		t.Errorf("%+v", used)
	}
}

// Where all keys have as many as they may, an idle connection of the key with most gives way.
func TestTheKeyWithMostConnectionsGivesWay(t *testing.T) {
	t.Parallel()
	var totals quota.Limits
	totals[quota.Connections] = 64 // 48 for keys that are not the operator's, 24 for one of them
	address, book := keyedServer(t, quota.Config{Totals: totals})
	var operators []*client
	for range 40 {
		c := dial(t, address)
		if status := c.ask("operator", "/"); status != 200 {
			t.Fatal(status)
		}
		operators = append(operators, c)
	}
	for i := range 4 {
		for range 30 {
			if status := dial(t, address).ask(fmt.Sprint("key", i), "/"); status != 200 && status != 429 {
				t.Fatal(status)
			}
		}
	}
	if use, _ := book.Shared(quota.Connections); use.Used > 48 || use.Used < 30 {
		t.Errorf("%+v", use)
	}
	late := dial(t, address)
	for range 2 {
		if status := late.ask("late", "/"); status != 200 {
			t.Errorf("a key that comes late: %d", status)
		}
	}
	for _, c := range operators {
		if status := c.ask("operator", "/"); status != 200 {
			t.Fatalf("an idle connection of the operator gave way: %d", status)
		}
	}
}
