package load

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

func TestWebSocketMessages(t *testing.T) {
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow() //nolint:errcheck // the client has gone
		for {
			kind, message, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, message) != nil {
				return
			}
		}
	})
	r, err := Run(t.Context(), Options{Kind: WebSocket, Dial: address, Name: "example.com", Path: "/", Conns: 2, Count: 30})
	if err != nil || r.Units != 30 || r.Errors != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, answer := range []string{"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n\r\n", ""} {
		if err := new(generator).upgrade(io.Discard, bufio.NewReader(strings.NewReader(answer)), "x"); err == nil {
			t.Errorf("%q was accepted", answer)
		}
	}
}

// gateway starts an API that cuts the connections of a server when a policy is set.
func gateway(t *testing.T, cut func()) *Change {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "api.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && r.URL.Path == "/policy" {
			cut()
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	_ = s.Listener.Close()
	s.Listener = ln
	s.Start()
	t.Cleanup(s.Close)
	return &Change{Socket: socket, Key: "key", Method: "PUT", Path: "/policy", Body: map[string]any{"mode": "deny-all"}}
}

func TestCutConnections(t *testing.T) {
	for _, plain := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(kilobyte))
		if plain {
			s.Start()
		} else {
			s.StartTLS()
		}
		t.Cleanup(s.Close)
		o := Options{
			Kind: Cut, Dial: s.Listener.Addr().String(), Plain: plain, Name: "example.com", Path: "/", Size: 1024, Conns: 5,
			Change: gateway(t, s.CloseClientConnections),
		}
		if r, err := Run(t.Context(), o); err != nil || r.Units != 5 || !plain && r.Last <= 0 {
			t.Errorf("plain %v: %+v, %v", plain, r, err)
		}
	}
}
