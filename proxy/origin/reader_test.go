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
	asked := 0
	r := &clientAwareReader{conn: here}
	r.begin(ctx, func() bool { asked++; return asked > 1 })
	b := make([]byte, 8)
	elapse := func() { // as if a read had waited until then
		r.check = time.Now()
		_ = here.SetReadDeadline(r.check)
	}
	elapse()
	go func() { _, _ = there.Write([]byte("late")) }()
	if n, err := r.Read(b); string(b[:n]) != "late" || err != nil || asked > 1 {
		t.Fatalf("%q, %v; the client was polled %d times", b[:n], err, asked)
	}
	asked = 1
	elapse()
	if _, err := r.Read(b); !errors.Is(err, relay.ErrClientGone) {
		t.Errorf("a client that is gone: %v", err)
	}
	cancel()
	elapse()
	if _, err := r.Read(b); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was cancelled: %v", err)
	}
	_ = there.Close()
	if _, err := r.Read(b); err == nil {
		t.Error("a read from a closed connection succeeded")
	}
}
