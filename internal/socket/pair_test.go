package socket

import (
	"io"
	"net"
	"testing"
	"time"
)

// The ends of a pair are connected with each other.
func TestPair(t *testing.T) {
	t.Parallel()
	ours, theirs, err := Pair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	if _, err := io.WriteString(ours, "to them"); err != nil {
		t.Fatal(err)
	}
	if err := ours.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(theirs)
	if string(got) != "to them" || err != nil {
		t.Errorf("received %q, %v", got, err)
	}
}

// Connections of other programs to the listener of a pair are closed.
func TestConnectionsOfOthersAreClosed(t *testing.T) {
	t.Parallel()
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp4", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	other, ours := dial(), dial()
	got, err := acceptFrom(ln, ours.LocalAddr(), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.RemoteAddr().String() != ours.LocalAddr().String() {
		t.Errorf("accepted %v", got.RemoteAddr())
	}
	if _, err := other.Read(make([]byte, 1)); err == nil {
		t.Error("the other connection is open")
	}
}
