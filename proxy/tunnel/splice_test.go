package tunnel

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

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

// BenchmarkSplice moves bytes through a tunnel, as one stream and as many short messages. The CPU time includes both ends,
// which are the same for every way of copying.
func BenchmarkSplice(b *testing.B) {
	p := NewPool(time.Hour, 512, zap.NewNop())
	b.Cleanup(p.Close)
	for name, size := range map[string]int{"stream": 128 << 10, "messages": 100} {
		b.Run(name, func(b *testing.B) {
			client, c := tcpPair(b)
			s, server := tcpPair(b)
			done := make(chan error, 1)
			go func() { done <- splice(p, c, s, newCounters()) }()
			go func() {
				if name == "stream" {
					_, _ = io.Copy(io.Discard, struct{ io.Reader }{server})
				} else {
					_, _ = io.Copy(struct{ io.Writer }{server}, struct{ io.Reader }{server})
				}
				server.Close()
			}()
			buf := make([]byte, size)
			b.SetBytes(int64(size))
			before := processorTime(b)
			for b.Loop() {
				if _, err := client.Write(buf); err != nil {
					b.Fatal(err)
				}
				if name == "messages" {
					if _, err := io.ReadFull(client, buf); err != nil {
						b.Fatal(err)
					}
				}
			}
			_ = client.CloseWrite()
			_, _ = io.Copy(io.Discard, client)
			client.Close()
			if err := <-done; err != nil {
				b.Error(err)
			}
			gb := float64(b.N) * float64(size) / (1 << 30)
			b.ReportMetric((processorTime(b)-before).Seconds()/gb, "cpu-s/GiB")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

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

// TestAttackCutHitsNoOtherSocket: a tunnel is cut after its sockets have been closed and a descriptor number was reused by
// another socket. It is not parallel, because other tests would take the number.
func TestAttackCutHitsNoOtherSocket(t *testing.T) {
	p := newPool(t)
	_, far := tcpPair(t)
	upstream, _ := tcpPair(t)
	number := descriptor(far)
	tun := p.Splice(Spec{Client: far, Box: "box1", Owner: make(ending, 1), Count: newCounters()}, upstream)
	far.Close()
	other := -1
	for range 64 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if fd == number {
			other = fd
			break
		}
	}
	if other < 0 {
		t.Fatalf("no socket got the number %d", number)
	}
	if err := errors.Join(tun.Close(), tun.Close()); err != nil {
		t.Fatal(err)
	}
	on, err := unix.GetsockoptInt(other, unix.SOL_SOCKET, unix.SO_LINGER)
	if err != nil || on != 0 {
		t.Errorf("the other socket: SO_LINGER %d, %v", on, err)
	}
}

// TestAttackLateEventOfAnEarlierTunnel: a pending event for the sockets of a closed tunnel, such as their end, is not
// applied to the tunnel that now has its slot.
func TestAttackLateEventOfAnEarlierTunnel(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	begin := func() (*Tunnel, *net.TCPConn, *net.TCPConn, ending) {
		box, far := tcpPair(t)
		upstream, srv := tcpPair(t)
		o := make(ending, 1)
		tun := p.Splice(Spec{Client: far, Box: "box1", Owner: o, Count: newCounters()}, upstream)
		tun.Start()
		return tun, box, srv, o
	}
	first, _, _, o := begin()
	loop, late := first.loop, first.slot
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	<-o
	for range 2 * runtime.GOMAXPROCS(0) {
		tun, box, srv, o := begin()
		if tun.loop != loop || tun.slot.index != late.index {
			continue
		}
		if got := loop.tunnelAt(late); got != nil {
			got.handleEvent(client, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP) // as the loop does
		}
		for range 2 {
			if _, err := io.WriteString(box, "x"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(srv, make([]byte, 1)); err != nil {
				t.Fatalf("the tunnel that now has the slot: %v", err)
			}
		}
		_ = tun.Close()
		<-o
		return
	}
	t.Fatal("no tunnel got the slot of the first")
}
