package tunnel

import (
	"bytes"
	"io"
	"testing"
)

// TestAttackUrgentByteInBulk: urgent data in the middle of a large transfer truncates nothing, at any speed.
func TestAttackUrgentByteInBulk(t *testing.T) {
	t.Parallel()
	const half = 4 << 20
	p := newPool(t)
	box, far := tcpPair(t)
	upstream, srv := tcpPair(t)
	o := make(ending, 1)
	go func() {
		content := bytes.Repeat([]byte("x"), half)
		_, _ = box.Write(content)
		sendUrgent(t, box, "!", string(content))
		_ = box.CloseWrite()
	}()
	p.Splice(Spec{Client: far, Box: "box1", Owner: o, Count: newCounters()}, upstream).Start()
	got, err := io.ReadAll(srv)
	if n := bytes.Count(got, []byte("x")); err != nil || n != 2*half {
		t.Errorf("%d bytes arrived of %d, %v", n, 2*half, err)
	}
	srv.Close()
	<-o
}
