package tunnel

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// owned is the owner of one tunnel.
type owned struct {
	opened, slow  chan struct{}
	ended, failed chan error
}

func newOwned() *owned {
	return &owned{make(chan struct{}, 2), make(chan struct{}, 2), make(chan error, 2), make(chan error, 2)}
}

func (o *owned) Opened()          { o.opened <- struct{}{} }
func (o *owned) Ended(err error)  { o.ended <- err }
func (o *owned) Failed(err error) { o.failed <- err }
func (o *owned) Slow()            { o.slow <- struct{}{} }

// dialling returns an unstarted tunnel that will connect to an address, and the client's end.
func dialling(t testing.TB, p *Pool, to net.Addr, first string) (*Tunnel, *owned, *net.TCPConn, Counters) {
	t.Helper()
	near, far := tcpPair(t)
	o, count := newOwned(), newCounters()
	tun, err := p.Dial(Spec{Client: far, Box: "box1", Owner: o, Count: count}, netip.Addr{}, netip.MustParseAddrPort(to.String()), []byte(first), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return tun, o, near, count
}

func listen(t testing.TB) *net.TCPListener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener)
}

func newPool(t testing.TB) *Pool {
	p := NewPool(time.Hour, 16, zap.NewNop())
	t.Cleanup(p.Close)
	return p
}

func TestTunnelConnectsByItself(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	tun, o, near, count := dialling(t, newPool(t), ln.Addr(), "hello ")
	tun.Start()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-o.opened
	_, _ = io.WriteString(near, "server")
	_ = near.CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello server" {
		t.Errorf("the server was sent %q, %v", got, err)
	}
	_, _ = io.WriteString(conn, "hello client") // after the client has half-closed
	conn.Close()
	if got, err := io.ReadAll(near); err != nil || string(got) != "hello client" {
		t.Errorf("the client was sent %q, %v", got, err)
	}
	if err := <-o.ended; err != nil || count.In.Load() != 12 || count.Out.Load() != 12 {
		t.Errorf("%v, %d bytes in, %d out", err, count.In.Load(), count.Out.Load())
	}
}

func TestTunnelToAClosedPortFails(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	ln.Close()
	tun, o, near, _ := dialling(t, newPool(t), ln.Addr(), "hello")
	tun.Start()
	var dialled *net.OpError
	if err := <-o.failed; !errors.Is(err, unix.ECONNREFUSED) || !errors.As(err, &dialled) || dialled.Op != "dial" {
		t.Errorf("failed with %v", err)
	}
	if _, err := tun.Client.Write([]byte("x")); err != nil { // the owner answers it
		t.Errorf("the client's connection: %v", err)
	}
	if _, err := io.ReadFull(near, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// silent returns an address that answers no SYN: that of a listener with a full backlog.
func silent(t testing.TB) net.Addr {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(sa.(*unix.SockaddrInet4).Port)))
	c, err := net.DialTCP("tcp", nil, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return at
}

func TestTunnelToASilentServerFailsInTime(t *testing.T) {
	t.Parallel()
	tun, o, _, _ := dialling(t, newPool(t), silent(t), "hello")
	tun.dial.timeout = 10 * time.Millisecond
	tun.Start()
	if err := <-o.failed; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("failed with %v", err)
	}
}

// TestTunnelWithoutTimeLeft: no connection is made if name resolution has used up the time.
func TestTunnelWithoutTimeLeft(t *testing.T) {
	t.Parallel()
	_, far := tcpPair(t)
	to := netip.MustParseAddrPort(listen(t).Addr().String())
	tun, err := newPool(t).Dial(Spec{Client: far, Box: "box1", Owner: newOwned(), Count: newCounters()}, netip.Addr{}, to, []byte("hello"), 0)
	if tun != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, %v", tun, err)
	}
}

// TestAttackCutWhileATunnelConnects: a cut closes a tunnel at any stage, exactly once.
func TestAttackCutWhileATunnelConnects(t *testing.T) {
	t.Parallel()
	at := silent(t)
	for _, started := range []bool{false, true} {
		tun, o, near, _ := dialling(t, newPool(t), at, "hello")
		if started {
			tun.Start()
		}
		tun.Close()
		tun.Close()
		tun.Start() // too late
		if err := <-o.ended; !errors.Is(err, errClosed) {
			t.Errorf("ended with %v", err)
		}
		if _, err := io.ReadAll(near); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the client saw %v", err)
		}
		if len(o.ended) > 0 || len(o.failed) > 0 || len(o.opened) > 0 {
			t.Error("the owner was called twice")
		}
	}
}

// TestManyTunnelsMixNothing moves different bytes through many tunnels at the same time, in pieces of all sizes, while
// others are cut.
func TestManyTunnelsMixNothing(t *testing.T) {
	t.Parallel()
	p, ln := newPool(t), listen(t)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
				_ = c.Close()
			}()
		}
	}()
	var all sync.WaitGroup
	for n := range 40 {
		tun, o, near, count := dialling(t, p, ln.Addr(), string([]byte{byte('a' + n)}))
		tun.Start()
		all.Go(func() {
			if n%4 == 3 {
				_, _ = near.Write(make([]byte, rand.IntN(1<<18)))
				tun.Close()
				<-o.ended
				return
			}
			sent := bytes.Repeat([]byte{byte('a' + n)}, 1+rand.IntN(1<<21))
			go func() {
				for rest := sent[1:]; len(rest) > 0; {
					k := min(len(rest), 1+rand.IntN(1<<uint(rand.IntN(20))))
					_, _ = near.Write(rest[:k])
					rest = rest[k:]
				}
				_ = near.CloseWrite()
			}()
			if got, err := io.ReadAll(near); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("tunnel %d: %d of %d bytes came back, %v", n, len(got), len(sent), err)
			}
			if err := <-o.ended; err != nil || count.In.Load() != int64(len(sent)) || count.Out.Load() != int64(len(sent)) {
				t.Errorf("tunnel %d: %v, %d in and %d out of %d", n, err, count.In.Load(), count.Out.Load(), len(sent))
			}
		})
	}
	all.Wait()
	if n := p.Pipes(); n != 0 {
		t.Errorf("%d pipes are still in use", n)
	}
}

// TestBytesBehindUrgentOnesArrive: reading stops at urgent data (tcp(7)) although more data may follow.
func TestBytesBehindUrgentOnesArrive(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	box, far := tcpPair(t)
	upstream, srv := tcpPair(t)
	sendUrgent(t, box, "ab!", "cd")
	_, _ = io.WriteString(box, "ef")
	_ = box.CloseWrite()
	o := make(ending, 1)
	p.Splice(Spec{Client: far, Box: "box1", Owner: o, Count: newCounters()}, upstream).Start()
	if got, err := io.ReadAll(srv); err != nil || !bytes.HasSuffix(got, []byte("ef")) {
		t.Errorf("%q, %v", got, err)
	}
	srv.Close()
	<-o
}

// sendUrgent sends a few bytes, the last of them urgent, and then the rest.
func sendUrgent(t testing.TB, c *net.TCPConn, urgent, rest string) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	failed := raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), []byte(urgent), unix.MSG_OOB, nil)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err := errors.Join(failed, err); err != nil {
		t.Error(err)
	}
	_, _ = io.WriteString(c, rest)
}

func TestLoopsEndWithTheirLastTunnel(t *testing.T) {
	t.Parallel()
	p, ln := newPool(t), listen(t)
	tun, o, near, _ := dialling(t, p, ln.Addr(), "hello")
	tun.Start()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	<-o.opened
	p.Close()
	_, _ = io.CopyN(io.Discard, conn, 5)
	_, _ = io.WriteString(conn, "still open")
	conn.Close()
	if got, err := io.ReadAll(near); string(got) != "still open" {
		t.Errorf("%q, %v", got, err)
	}
	near.Close()
	if err := <-o.ended; err != nil {
		t.Error(err)
	}
	tun.loop.mu.Lock()
	defer tun.loop.mu.Unlock()
	if !tun.loop.ended {
		t.Error("the loop has not ended")
	}
}

// TestAttackCutInTwoSteps: after the first step of a cut the client is reset and nothing passes, after the second the server is reset as
// well, and the owner hears of the end once.
func TestAttackCutInTwoSteps(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	tun, o, near, count := dialling(t, newPool(t), ln.Addr(), "hello")
	tun.Start()
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_ = server.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(server, make([]byte, len("hello"))); err != nil {
		t.Fatal(err)
	}
	<-o.opened
	finish := tun.Cut()
	if finish == nil {
		t.Fatal("an open tunnel was not cut")
	}
	if tun.Cut() != nil {
		t.Error("it was cut twice")
	}
	if _, err := io.ReadAll(near); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the client saw %v", err)
	}
	if _, err := server.Write([]byte("too late")); err != nil {
		t.Errorf("the server's side is closed by the first step: %v", err)
	}
	tun.Close()
	if len(o.ended) > 0 {
		t.Error("ended before the second step")
	}
	finish()
	if _, err := io.ReadAll(server); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the server saw %v", err)
	}
	if err := <-o.ended; !errors.Is(err, errClosed) {
		t.Errorf("ended with %v", err)
	}
	if n := count.In.Load(); n > 0 {
		t.Errorf("%d bytes passed to the client", n)
	}
}
