package local

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// request sends a request over a connection, and returns the status and body of its response.
func request(t *testing.T, conn net.Conn) (status int, body string) {
	t.Helper()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// TestDial: each connection leads to its own handler.
func TestDial(t *testing.T) {
	t.Parallel()
	var s Server
	t.Cleanup(s.Close)
	for _, want := range []string{"one", "two"} {
		conn, err := s.Dial(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, want) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 2 {
			if status, got := request(t, conn); status != 200 || got != want {
				t.Errorf("%d %q, not %q", status, got, want)
			}
		}
	}
}

// TestPanic: a panic is reported, except that with which handlers abort a response.
func TestPanic(t *testing.T) {
	t.Parallel()
	panics := 0
	s := Server{Panicked: func() { panics++ }}
	t.Cleanup(s.Close)
	for _, value := range []any{"text", http.ErrAbortHandler} {
		conn, err := s.Dial(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(value) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if status, _ := request(t, conn); status != 0 {
			t.Errorf("answered %d", status)
		}
	}
	if panics != 1 {
		t.Errorf("%d panics were reported", panics)
	}
}

// TestClose: after Close, open connections end and no other is made.
func TestClose(t *testing.T) {
	t.Parallel()
	var s Server
	began, ended := make(chan struct{}), make(chan struct{})
	conn, err := s.Dial(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		close(ended)
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
	<-began
	s.Close()
	<-ended
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
	s.Close()
	if _, err := s.Dial(http.NotFoundHandler()); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("a connection was made: %v", err)
	}
}
