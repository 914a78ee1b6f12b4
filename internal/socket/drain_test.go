package socket

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A client that connected before the drain is accepted; one that connects after it is refused.
func TestDrain(t *testing.T) {
	t.Parallel()
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "socket")} {
		for _, waits := range []bool{false, true} { // whether Accept is pending
			t.Run(network, func(t *testing.T) {
				ln, err := net.Listen(network, address)
				if err != nil {
					t.Fatal(err)
				}
				q := NewQueue(ln)
				defer q.Close()
				const count = 20
				got := make(chan net.Conn, count)
				ended := make(chan error, 1)
				serve := func() {
					for {
						c, err := q.Accept()
						if err != nil {
							ended <- err
							return
						}
						got <- c
					}
				}
				if waits {
					go serve()
				}
				var clients []net.Conn
				for range count {
					c, err := net.Dial(network, ln.Addr().String())
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					clients = append(clients, c)
				}
				Drain(q)
				if !waits {
					go serve()
				}
				if err := <-ended; !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				if len(got) != count {
					t.Fatalf("%d of %d accepted", len(got), count)
				}
				for range count {
					c := <-got
					if _, err := io.WriteString(c, "hello"); err != nil {
						t.Error(err)
					}
					_ = c.Close()
				}
				for _, c := range clients {
					if said, err := io.ReadAll(c); err != nil || string(said) != "hello" {
						t.Errorf("%q, %v", said, err)
					}
				}
				if c, err := net.Dial(network, ln.Addr().String()); err == nil {
					_ = c.Close()
					t.Error("somebody listens still")
				} else if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT) {
					t.Error(err)
				}
				if _, err := q.Accept(); !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
		}
	}
}

// A client that connected and left before the drain is accepted like any other, with its address, and then read as
// closed.
func TestDrainOfWhoHasGone(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	q := NewQueue(ln)
	defer q.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
	q.Drain()
	got, err := q.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.RemoteAddr() == nil || got.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("it came from %v, not from %v", got.RemoteAddr(), c.LocalAddr())
	}
}

// If Accept fails briefly during a drain, for example for lack of a descriptor, the caller may retry and no queued
// client is refused. Too many failures end the drain.
func TestDrainWithFaults(t *testing.T) {
	t.Parallel()
	for _, faults := range []int{drainFaults - 1, drainFaults} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f := &faulty{ln.(*net.TCPListener), faults}
		q := NewQueue(f)
		defer q.Close()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		q.Drain()
		for range faults {
			if _, err := q.Accept(); !errors.Is(err, unix.EMFILE) {
				t.Fatal(err)
			}
		}
		got, err := q.Accept()
		if (err == nil) != (faults < drainFaults) {
			t.Errorf("after %d faults: %v", faults, err)
		}
		if err == nil {
			defer got.Close()
		}
	}
}

// faulty is a listener whose first Accepts fail.
type faulty struct {
	*net.TCPListener
	faults int
}

func (f *faulty) Accept() (net.Conn, error) {
	if f.faults--; f.faults >= 0 {
		return nil, unix.EMFILE
	}
	return f.TCPListener.Accept()
}

// A drain ends even if connections keep arriving.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	q := NewQueue(ln)
	defer q.Close()
	q.accepted = drainMost - 3
	q.Drain()
	for n := 0; ; n++ {
		if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
			defer c.Close()
		}
		if c, err := q.Accept(); err == nil {
			_ = c.Close()
			continue
		}
		if n != 3 {
			t.Errorf("%d connections, want 3", n)
		}
		break
	}
}
