package origin

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"boxgate/relay"
)

// TestReadsEndWithTheClient polls the client only when the time for that has come, and reads on while it is there.
func TestReadsEndWithTheClient(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked, gone := 0, false
	w := &wait{conn: here, ctx: ctx, gone: func() bool { asked++; return gone }}
	r := &relay.ServerReader{Conn: here}
	elapse := func() { _ = here.SetReadDeadline(time.Now()) } // as one that an earlier exchange has set
	b := make([]byte, 8)
	r.Begin(w, time.Minute)
	elapse()
	go func() { _, _ = there.Write([]byte("late")) }()
	if n, err := r.Read(b); string(b[:n]) != "late" || err != nil || asked > 0 {
		t.Fatalf("%q, %v; the client was polled %d times", b[:n], err, asked)
	}
	gone = true
	r.Begin(w, time.Nanosecond)
	if _, err := r.Read(b); !errors.Is(err, relay.ErrClientGone) || asked != 1 {
		t.Errorf("a client that is gone: %v; it was polled %d times", err, asked)
	}
	cancel()
	r.Begin(w, time.Minute)
	elapse()
	if _, err := r.Read(b); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was cancelled: %v", err)
	}
	_ = there.Close()
	if _, err := r.Read(b); err == nil {
		t.Error("a read from a closed connection succeeded")
	}
}
