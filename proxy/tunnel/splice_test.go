package tunnel

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/internal/socket"
)

func newCounters() Counters {
	return Counters{In: new(atomic.Int64), Out: new(atomic.Int64), Pipes: new(atomic.Int64)}
}

// splice runs a tunnel to its end.
func splice(p *Pool, client, upstream *net.TCPConn, count Counters) error {
	o := make(ending, 1)
	p.Splice(Spec{Client: client, Box: "box1", Owner: o, Count: count}, upstream).Start()
	return <-o
}

// ending is the owner of a tunnel between connected sockets.
type ending chan error

func (e ending) Ended(err error) { e <- err }
func (e ending) Opened()         {}
func (e ending) Failed(error)    {}
func (e ending) Slow()           {}

// TestAttackBytesOfATunnelThatBreaksOff: bytes that a server received before it broke off are counted.
func TestAttackBytesOfATunnelThatBreaksOff(t *testing.T) {
	t.Parallel()
	p := NewPool(time.Hour, 512, zap.NewNop())
	defer p.Close()
	box, client := tcpPair(t)
	upstream, server := tcpPair(t)
	_, _ = upstream.SetWriteBuffer(4<<10), server.SetReadBuffer(4<<10)
	if _, err := box.Write(make([]byte, 512<<10)); err != nil { // all of it waits in the sockets
		t.Fatal(err)
	}
	counters := newCounters()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = splice(p, client, upstream, counters)
	}()
	const taken = 64 << 10
	if _, err := io.ReadFull(server, make([]byte, taken)); err != nil {
		t.Fatal(err)
	}
	socket.Reset(server)
	<-done
	if n := counters.Out.Load(); n < taken {
		t.Errorf("%d bytes are counted, the server took %d", n, taken)
	}
}

// tcpPair returns both ends of a connection.
func tcpPair(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	z, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); z.Close() })
	return a.(*net.TCPConn), z.(*net.TCPConn)
}
