package websocket

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// plain opens WebSockets to a test server.
func plain(srv *httptest.Server, through func(net.Conn) net.Conn) Dialer {
	return func(ctx context.Context, offer string) (io.ReadWriteCloser, string, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
		if err != nil {
			return nil, "", err
		}
		if through != nil {
			conn = through(conn)
		}
		return shakeHands(conn, "echo.example", offer)
	}
}

// failures runs cases and returns the numbers of the failed ones, with the received events.
func failures(t *testing.T, dial Dialer, cases []Case) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, v := range Run(t.Context(), dial, cases, time.Second) {
		if v.Outcome != OK && v.Outcome != Informational {
			out[v.Number] = v.Outcome + ": " + v.Seen
		}
	}
	return out
}

func TestEchoPassesEveryCase(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(Echo())
	t.Cleanup(srv.Close)
	for number, seen := range failures(t, plain(srv, nil), append(Protocol(), append(Limits(64), Compression(5, 8<<10)...)...)) {
		t.Errorf("%s: %s", number, seen)
	}
}

// TestAnotherServerPassesButUTF8 runs the cases against a third-party server, which is known not to validate UTF-8.
func TestAnotherServerPassesButUTF8(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		for {
			kind, message, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, message) != nil {
				return
			}
		}
	}))
	t.Cleanup(srv.Close)
	bad := 0
	for number, seen := range failures(t, plain(srv, nil), append(Protocol(), Limits(64)...)) {
		if !strings.HasPrefix(number, "6.") && number != "7.5.1" {
			t.Errorf("%s: %s", number, seen)
		}
		bad++
	}
	if bad < 50 {
		t.Errorf("only %d cases saw that the server does not look at UTF-8", bad)
	}
}

// late is a path that changes one bit of the first frame after the handshake.
type late struct {
	net.Conn
	first bool
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if l.first && n > 0 {
		p[0] ^= 0x40 // RSV 1
	}
	l.first = n > 0 && strings.HasPrefix(string(p[:n]), "HTTP/1.1 101")
	return n, err
}

func TestPathThatChangesOneBitIsSeen(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(Echo())
	t.Cleanup(srv.Close)
	cases := framing()
	if bad := failures(t, plain(srv, func(c net.Conn) net.Conn { return &late{Conn: c} }), cases); len(bad) != len(cases) {
		t.Errorf("%d of %d cases saw it", len(bad), len(cases))
	}
}

// TestNumbers compares the size of the set with Autobahn's.
func TestNumbers(t *testing.T) {
	seen := map[string]bool{}
	for _, set := range []struct {
		name  string
		cases []Case
		want  int
	}{{"protocol", Protocol(), 247}, {"limits", Limits(64), 54}, {"compression", Compression(2, 64), 216}} {
		for _, c := range set.cases {
			if seen[c.Number] {
				t.Errorf("two cases %s", c.Number)
			}
			seen[c.Number] = true
		}
		if len(set.cases) != set.want {
			t.Errorf("%d cases of %s, want %d", len(set.cases), set.name, set.want)
		}
	}
}
