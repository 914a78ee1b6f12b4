package socket_test

import (
	"io"
	"net"
	"testing"
	"time"

	"boxgate/internal/nightly"
	"boxgate/internal/socket"
	"boxgate/internal/socket/sockettest"
)

// connected returns the two ends of a TCP connection.
func connected(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// TestPeerThatVanishes: data sent to a vanished peer stays unanswered; a live peer that does not read is not considered
// lost.
func TestPeerThatVanishes(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	near, far := connected(t)
	slow, reader := connected(t)
	full := make(chan struct{})
	go func() { // until both buffers are full
		defer close(full)
		_ = slow.SetWriteDeadline(time.Now().Add(time.Second))
		for b := make([]byte, 1<<20); ; {
			if _, err := slow.Write(b); err != nil {
				return
			}
		}
	}()
	if n := socket.UnansweredBy(near); n != 0 {
		t.Errorf("unanswered for %v, and nothing was sent", n)
	}
	back := sockettest.Vanish(t, far)
	_, _ = io.WriteString(near, "anybody?")
	if n := socket.UnansweredBy(near); n != 0 {
		t.Errorf("unanswered for %v at once", n)
	}
	await(t, func() bool { return socket.UnansweredBy(near) >= socket.VanishedAfter })
	<-full
	if n := socket.UnansweredBy(slow); n != 0 {
		t.Errorf("a peer that does not read is taken for gone: %v", n)
	}
	back()
	if _, err := io.ReadFull(far, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return socket.UnansweredBy(near) == 0 })
	_ = reader
}

func await(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come")
		}
	}
}
