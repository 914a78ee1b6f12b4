package share

import (
	"errors"
	"net"
	"testing"

	"boxgate/internal/socket"
)

// A place is free again when its connection is closed, however it ended, and Close does not wait for places.
func TestVisitorsAreLimited(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := newVisitors(ln, 2)
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := v.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
			accepted <- c
		}
	}()
	for range 4 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first, second := <-accepted, <-accepted
	if len(v.places) != 2 {
		t.Errorf("%d places are taken", len(v.places))
	}
	select {
	case <-accepted:
		t.Error("a third connection was accepted")
	default:
	}
	first.(interface{ NetConn() net.Conn }).NetConn().Close() // does not free the place
	first.Close()
	first.Close()
	third := <-accepted
	v.Close()
	for _, c := range []net.Conn{second, third} {
		c.Close()
	}
	if _, open := <-accepted; open {
		t.Error("accepted after Close")
	}
}

// Who has connected gets a place while there is one, and draining waits for no place to become free.
func TestVisitorsAreDrained(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := newVisitors(socket.NewQueue(ln), 2)
	for range 4 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	v.Drain()
	for range 2 {
		c, err := v.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if _, err := v.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, and no place was free", err)
	}
}
